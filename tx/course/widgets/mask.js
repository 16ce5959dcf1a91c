// `see` is what each block lets through, on absolute positions q and k: tests hold it against tx.
// terms the blocks in order, combined from left to right; hand the cells changed by hand.
var see={
  causal:function(q,k) {return k<=q},
  window:function(q,k,n) {return Math.abs(q-k)<n},
  prefix:function(q,k,n) {return k<n},
  padding:function(q,k) {return d.real[k]},
  documents:function(q,k) {return d.ids[q]===d.ids[k]}
};
var arg={causal:'',padding:'real',documents:'ids'};
var S=d.tokens.length;
var T=d.T;
var terms=d.terms;
var hand={};
var G;
var used=false;
var box=stage();
var list=E(box,'div',{'class':'c'});
var add=E(box,'div',{'class':'c'});
var tl=E(E(box,'div',{'class':'c'}),'label',{style:'flex:1 1 240px;max-width:340px'});
var tt=E(tl,'span');
var ti=E(tl,'input',{type:'range',min:1,max:S,step:1});
var f=E(box,'div',{'class':'f'});
var left=E(f,'div',{style:'flex:0 1 344px;min-width:0'});
var p=E(f,'div',{'class':'p'});
var at=[0,0];
E(p,'div',{'class':'n'},'in tx');
var code=E(p,'code',{'class':'x','data-out':1});
var names=E(p,'div');
var note=E(p,'div',{'class':'o'});
var undo=E(E(p,'div',{'class':'c'}),'button',{type:'button'},'undo changes by hand');
function named() {
  var s='';
  var either=false;
  terms.forEach(function(t,i) {
    var me=t.kind+'('+(t.n==null?arg[t.kind]:t.n)+')';
    if(!i) {
      s=me;
      either=false;
      return
    }
    if(t.op=='&'&&either)s='('+s+')';
    either=t.op=='|';
    s+=' '+t.op+' '+me
  });
  return s||'everything()'
}
function keep(i,j) {
  var q=S-T+i;
  var v=true;
  terms.forEach(function(t,k) {
    var x=see[t.kind](q,j,t.n);
    v=!k?x:t.op=='|'?v||x:v&&x
  });
  return v!==!!hand[i+','+j]
}
function name(k) {return d.numbered?k:k+' '+d.tokens[k]}
function build() {
  list.textContent='';
  terms.forEach(function(t,k) {
    var part=E(list,'span',{'class':'c',style:'margin:0;flex-wrap:nowrap'});
    if(k) {
      var o=E(part,'button',{type:'button','aria-label':'combine with '+(t.op=='&'?'and':'or')+
          ': press for '+(t.op=='&'?'or':'and')},t.op);
      o.addEventListener('click',function() {
        t.op=t.op=='&'?'|':'&';
        change('op',k)
      })
    }
    var g=E(part,'span',{'class':'c k'});
    E(g,'span',{},t.kind);
    if(t.n!=null) {
      var n=E(g,'input',{type:'number',min:t.kind=='window'?1:0,max:S,value:t.n,
          'aria-label':t.kind+(t.kind=='window'?', keys seen counting the query':
          ', number of keys')});
      n.addEventListener('input',function() {
        var v=Math.round(+n.value);
        if(n.value!==''&&v>=+n.min&&v<=S) {
          t.n=v;
          hand={};
          draw()
        }
      })
    }
    var x=E(g,'button',{type:'button','aria-label':'remove '+t.kind},'\u00d7');
    x.addEventListener('click',function() {
      terms.splice(k,1);
      change('add',t.kind)
    })
  });
  if(!terms.length)E(list,'span',{'class':'m'},'nothing picked: everyone sees everything');
  add.textContent='';
  Object.keys(see).forEach(function(kind) {
    if(kind=='padding'&&!d.real||kind=='documents'&&!d.ids)return;
    var b=E(add,'button',{type:'button','data-add':kind},'+ '+kind);
    b.disabled=terms.some(function(t) {return t.kind==kind});
    b.addEventListener('click',function() {
      terms.push({kind:kind,op:'&',n:kind=='window'?d.window:kind=='prefix'?d.prefix:null});
      change('rm',kind)
    })
  });
  left.textContent='';
  var q=d.tokens.slice(S-T);
  G=grid(left,q,d.tokens,54,d.numbered?null:S-T);
  at=[Math.min(at[0],T-1),at[1]];
  G.svg.setAttribute('role','grid');
  G.svg.setAttribute('aria-label','mask: rows are queries, '+
      'columns are keys; arrow keys move, space changes a cell');
  E(G.svg,'text',{x:G.end+8,y:G.top-6,'class':'m'},'sees');
  G.count=G.rows.map(function(g,i) {
    g.setAttribute('role','row');
    var t=E(g,'text',{x:G.end+8,y:G.top+G.c*(i+.5)+4});
    G.cells[i].forEach(function(c,j) {
      c.setAttribute('role','gridcell');
      c.style.cursor='pointer';
      c.addEventListener('click',function() {flip(i,j)});
      c.addEventListener('focus',function() {at=[i,j]});
      c.addEventListener('keydown',function(e) {
        if(e.key==' '||e.key=='Enter') {
          e.preventDefault();
          flip(i,j);
          return
        }
        var b=rove(e,i,T,'ArrowUp','ArrowDown');
        var a=/Home|End/.test(e.key)?-1:b;
        if(a>=0) {
          move(a,j);
          return
        }
        a=rove(e,j,S,'ArrowLeft','ArrowRight');
        if(a>=0)move(i,a)
      })
    });
    return t
  });
  G.dots=E(G.svg,'g',{'pointer-events':'none'});
  draw()
}
function move(i,j) {
  G.cells[at[0]][at[1]].setAttribute('tabindex',-1);
  at=[i,j];
  G.cells[i][j].setAttribute('tabindex',0);
  G.cells[i][j].focus()
}
function flip(i,j) {
  hand[i+','+j]=!hand[i+','+j];
  move(i,j);
  draw()
}
function change(what,k) {
  hand={};
  build();
  var b;
  if(what=='add')b=add.querySelector('[data-add='+k+']');
  else b=list.querySelectorAll('button')[what=='op'?2*k-1:
      list.querySelectorAll('button').length-1];
  if(b)b.focus()
}
function draw() {
  var all=0;
  var empty=[];
  var n=0;
  var s=named();
  G.dots.textContent='';
  G.rows.forEach(function(g,i) {
    var c=0;
    G.cells[i].forEach(function(e,j) {
      var v=keep(i,j);
      var text='query '+name(S-T+i)+(v?' sees':' does not see')+' key '+name(j);
      c+=v;
      shade(e,v?.8:0,text);
      e.setAttribute('aria-label',text);
      e.setAttribute('aria-selected',v);
      e.setAttribute('tabindex',i==at[0]&&j==at[1]?0:-1);
      if(hand[i+','+j]) {
        n++;
        E(G.dots,'circle',{cx:G.x+G.c*(j+.5),cy:G.top+G.c*(i+.5),r:G.c/6,fill:'var(--b)'})
      }
    });
    all+=c;
    G.count[i].textContent=c?c:'0 empty';
    G.count[i].style.fill=c?'':'var(--b)';
    G.count[i].style.fontWeight=c?'':700;
    if(!c)empty.push(S-T+i)
  });
  code.textContent=n?'as_mask(keep)':s;
  names.textContent='';
  if(n)define('keep','torch.tensor('+rows(G.rows.map(function(g,i) {
    return rows(d.tokens.map(function(t,j) {return +keep(i,j)}))
  }))+').bool()');
  else {
    if(/real/.test(s))define('real','torch.tensor(['+rows(d.real.map(Number))+']).bool()');
    if(/ids/.test(s))define('ids','torch.tensor(['+rows(d.ids)+'])')
  }
  undo.disabled=!n;
  tt.textContent='queries: the last '+T+' of '+S+' tokens (T = '+T+', S = '+S+')';
  ti.setAttribute('aria-valuetext',T);
  note.textContent=(n?s+' with '+n+' cell'+(n>1?'s':'')+' changed by hand. ':'')+
      all+' of '+T*S+' cells are visible. '+(empty.length?
      'Sees nothing, so its output is zeros: query at position '+empty.join(', ')+'.':
      'Every query sees at least one key.');
  if(used)say(s+': '+note.textContent);
  used=true
}
function rows(x) {return '['+x.join(', ')+']'}
function define(name,what) {E(names,'code',{'class':'x y'},name+' = '+what)}
undo.addEventListener('click',function() {
  hand={};
  draw();
  G.cells[at[0]][at[1]].focus()
});
ti.value=T;
ti.addEventListener('input',function() {
  T=+ti.value;
  hand={};
  build()
});
build();
