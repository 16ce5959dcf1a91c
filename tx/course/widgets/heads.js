// h the head and i the query row that are chosen; G the grid, bar the numbers beside it.
var box=stage();
var H=d.maps.length;
var T=d.queries.length;
var S=d.keys.length;
var h=0;
var i=T-1;
var row=E(box,'div',{'class':'c',role:'radiogroup','aria-label':'head'});
var f=E(box,'div',{'class':'f'});
var G=grid(f,d.queries,d.keys,0);
var p=E(f,'div',{'class':'p'});
var what=E(p,'div',{style:'margin-bottom:6px'});
var bar=bars(E(p,'div',{'class':'b'}),d.keys,'weight');
var shown;
var frame=E(G.svg,'rect',{x:G.x,width:G.c*S,height:G.c,rx:3,fill:'none',stroke:'var(--b)',
    'stroke-width':2.5,'pointer-events':'none'});
var btn=d.maps.map(function(m,k) {
  var b=E(row,'button',{type:'button',role:'radio'});
  var s=E(b,'svg',{viewBox:'0 0 '+S+' '+T,style:'width:'+Math.round(40*Math.min(1,
      S/T))+'px;margin:4px auto 2px','aria-hidden':'true'});
  E(s,'rect',{width:S,height:T,fill:'none',stroke:'#7a7a7a','stroke-width':.03*S});
  m.forEach(function(r,a) {
    r.forEach(function(w,c) {
      if(w>20)E(s,'rect',{x:c,y:a,width:1,height:1,fill:'var(--a)','fill-opacity':w/1000})
    })
  });
  E(b,'span',{},d.names[k]);
  b.addEventListener('click',function() {
    h=k;
    draw()
  });
  b.addEventListener('keydown',function(e) {
    var j=rove(e,h,H,'ArrowLeft','ArrowRight');
    if(j<0)j=rove(e,h,H,'ArrowUp','ArrowDown');
    if(j>=0) {
      h=j;
      draw();
      btn[h].focus()
    }
  });
  return b
});
G.svg.setAttribute('role','group');
G.svg.setAttribute('aria-label','attention map: choose a query row with the arrow keys');
G.rows.forEach(function(g,k) {
  g.setAttribute('role','button');
  g.style.cursor='pointer';
  g.addEventListener('pointerenter',function() {
    i=k;
    draw()
  });
  g.addEventListener('click',function() {
    i=k;
    draw();
    g.focus({focusVisible:false})
  });
  g.addEventListener('focus',function() {
    if(i!=k) {
      i=k;
      draw()
    }
  });
  g.addEventListener('keydown',function(e) {
    var j=rove(e,i,T,'ArrowUp','ArrowDown');
    if(j>=0) {
      i=j;
      draw();
      G.rows[i].focus();
      return
    }
    j=rove(e,h,H,'ArrowLeft','ArrowRight');
    if(j>=0) {
      h=j;
      draw()
    }
  })
});
function draw(quiet) {
  var m=d.maps[h];
  var r=m[i];
  var best=0;
  if(shown!==h)m.forEach(function(r,a) {
    r.forEach(function(w,c) {
      shade(G.cells[a][c],w/1000,d.names[h]+', query '+d.queries[a]+', key '+d.keys[c]+': '+
          num(w/1000,3))
    })
  });
  shown=h;
  r.forEach(function(w,c) {
    if(w>r[best])best=c;
    bar[c](w/1000,num(w/1000,3))
  });
  btn.forEach(function(b,k) {
    b.setAttribute('aria-checked',k==h);
    b.tabIndex=k==h?0:-1
  });
  G.rows.forEach(function(g,k) {
    g.setAttribute('tabindex',k==i?0:-1);
    g.setAttribute('aria-label','query '+d.queries[k]);
    g.setAttribute('aria-pressed',k==i)
  });
  frame.setAttribute('y',G.top+G.c*i);
  what.textContent='';
  E(what,'b',{},d.names[h]);
  E(what,'span',{},', query ');
  E(what,'b',{},d.queries[i]);
  E(what,'span',{},' looks at');
  if(!quiet)say(d.names[h]+', query '+d.queries[i]+': largest weight '+num(r[best]/1000,
      2)+' on '+d.keys[best])
}
draw(true);
