"""Widgets that need no kernel: plain SVG and a little JavaScript in one HTML string.

A widget is what a cell returns. It works on the built site, in JupyterLab and on a phone, by mouse,
touch and keyboard, in light and dark theme. Where scripts are not allowed (an untrusted notebook, a
viewer that strips them) its table with the starting numbers stays and reads well.

    retrieval       keys and values on a plane, a query to drag, a temperature       chapters 0, 1
    heads           the attention maps of several heads, one query row at a time     chapter 2
    mask_editor     masks from blocks, and by hand                                   chapter 3
    attention_map   one attention map, as a picture                                  any chapter

All drawing is done by the script, so that stripping it leaves the table and no stray labels. The
same arguments give the same characters; two widgets on one page share nothing.
"""

import hashlib
import json
import math
import re
from html import escape

_MAX_BYTES = 30_000  # a page may hold several widgets, and every output is stored in the notebook

# Where the script runs, it puts the instructions in this sentence's place.
_STRIPPED = "To use this, run the cell or trust the notebook. It starts with these numbers:"

_CSS = """
.txw{--a:#2b7bc0;--b:#d06a00;--line:#7a7a7a66;
--g:var(--pst-color-background,var(--jp-layout-color0,Canvas));
position:relative;max-width:700px;margin:.5rem 0;font-size:14px;line-height:1.4;color:inherit}
.txw *{box-sizing:border-box}
.txw .t{font-weight:600;margin-bottom:2px}
.txw .n{opacity:.85;margin:4px 0}
.txw .f{display:flex;flex-wrap:wrap;gap:14px 22px;align-items:flex-start;margin:8px 0}
.txw .f>svg{flex:0 1 auto}
.txw .s{overflow-x:auto;min-width:0;padding:4px;margin:-4px}
.txw .p{flex:1 1 250px;min-width:0}
.txw svg{display:block;width:100%;height:auto;overflow:visible;user-select:none}
.txw text{fill:currentColor;font:12px system-ui,sans-serif;stroke:none}
.txw .m{opacity:.75}
.txw .h{paint-order:stroke;stroke:var(--g);stroke-width:4px;stroke-linejoin:round}
.txw button,.txw input[type=number]{font:inherit;color:inherit;background:none;
border:1px solid #7a7a7a;border-radius:6px;min-height:32px;padding:2px 9px;cursor:pointer}
.txw input[type=number]{width:58px;padding:2px 4px 2px 8px}
.txw button:hover{border-color:var(--a);box-shadow:inset 0 0 0 1px var(--a)}
.txw button[aria-checked=true]{border-color:var(--b);box-shadow:inset 0 0 0 1px var(--b)}
.txw button:disabled{opacity:.45;cursor:default;box-shadow:none;border-color:#7a7a7a}
.txw input[type=range]{appearance:none;width:100%;height:30px;margin:0;cursor:pointer;
background:linear-gradient(#7a7a7a,#7a7a7a) center/100% 3px no-repeat}
.txw ::-webkit-slider-thumb{appearance:none;width:20px;height:20px;border-radius:50%;
background:var(--b);border:0}
.txw ::-moz-range-thumb{width:20px;height:20px;border-radius:50%;background:var(--b);border:0}
.txw :focus{outline:none}
.txw :focus-visible{outline:3px solid var(--b);outline-offset:2px;border-radius:6px}
.txw label{display:block;margin:0}
.txw .c{display:flex;flex-wrap:wrap;gap:6px;align-items:center;margin:6px 0}
.txw .b{display:grid;grid-template-columns:auto 1fr auto;gap:3px 8px;align-items:center;
font-variant-numeric:tabular-nums}
.txw .b i{display:block;height:11px;border-radius:2px;background:var(--a);min-width:1px}
.txw .b span{white-space:nowrap;overflow:hidden;text-overflow:ellipsis;max-width:150px}
.txw .b .r{text-align:right;max-width:none}
.txw .k{border:1px solid var(--line);border-radius:8px;margin:0;padding:3px 3px 3px 10px;gap:4px}
.txw .o{font-variant-numeric:tabular-nums;margin-top:8px}
.txw .x{display:inline-block;font:13px ui-monospace,monospace;padding:4px 8px;color:inherit;
border:1px solid var(--line);border-radius:6px;background:none;overflow-wrap:anywhere}
.txw .y{display:block;font-size:12px;margin-top:6px}
.txw .v{position:absolute;width:1px;height:1px;overflow:hidden;clip-path:inset(50%);
white-space:nowrap}
.txw summary{cursor:pointer;opacity:.85;width:fit-content;display:list-item;
list-style:inside disclosure-closed}
.txw [open]>summary{list-style-type:disclosure-open}
.txw .w{overflow-x:auto}
.txw table{border-collapse:collapse;font-size:13px;margin:6px 0;width:auto;display:table;
font-variant-numeric:tabular-nums;color:inherit;background:none}
.txw th,.txw td{padding:2px 9px;text-align:right;border:0;border-bottom:1px solid var(--line);
background:none;color:inherit}
.txw caption{caption-side:top;text-align:left;color:inherit;opacity:.85}
html[data-theme=dark] .bd-content div.cell_output .text_html.text_html:has(.txw){background:none;
color:inherit;padding:0}
"""

# E makes an element, `say` fills the live region once things have come to rest, `grid` draws rows
# of queries against columns of keys, `bars` a list of labelled numbers, `rove` arrow keys.
_JS = """
var live=E(root,'div',{'class':'v','aria-live':'polite'});
var timer;
root.querySelector('details').open=false;
root.querySelector('.n').textContent=d.how;
root.addEventListener('keydown',function(e) {if(e.defaultPrevented)e.stopPropagation()});
function E(p,t,a,s) {
  var g=/^(svg|g|rect|line|path|circle|text|title)$/.test(t);
  var k;
  var e=g?document.createElementNS('http://www.w3.org/2000/svg',t):document.createElement(t);
  for(k in a)e.setAttribute(k,a[k]);
  if(s!=null)e.textContent=s;
  if(p)p.appendChild(e);
  return e
}
function stage() {return root.insertBefore(E(null,'div'),root.querySelector('details'))}
function num(x,n) {return x.toFixed(n).replace(/^-(0(\\.0+)?)$/,'$1').replace('-','\\u2212')}
function say(s) {
  clearTimeout(timer);
  timer=setTimeout(function() {live.textContent=s},250)
}
function cut(s) {return s.length>12?s.slice(0,11)+'\\u2026':s}
function size(s) {return 10+7*Math.max.apply(null,s.map(function(x) {return cut(x).length}))}
function bars(p,labels,head) {
  ['key','',head].forEach(function(s,i) {E(p,'span',{'class':i>1?'m r':'m'},s)});
  return labels.map(function(s) {
    E(p,'span',{title:s},s);
    var i=E(E(p,'div'),'i');
    var n=E(p,'span',{'class':'r'});
    return function(w,text,opacity) {
      i.style.width=100*w+'%';
      n.textContent=text
    }
  })
}
function rove(e,i,n,back,on) {
  var k=e.key;
  var j=k==back?i-1:k==on?i+1:k=='Home'?0:k=='End'?n-1:i;
  if(j==i&&k!='Home'&&k!='End')return -1;
  e.preventDefault();
  return Math.min(n-1,Math.max(0,j))
}
function grid(p,rows,cols,right,first) {
  var pos=first==null?0:15;
  var lx=size(rows)+22+pos;
  var flat=cols.every(function(s) {return cut(s).length<5});
  var top=(flat?18:size(cols))+22+pos;
  var c=Math.max(13,Math.min(34,Math.floor((336-lx-right)/cols.length)));
  var W=lx+c*cols.length+right+2;
  var H=top+c*rows.length+4;
  var s=E(E(p,'div',{'class':'s',style:'flex:0 1 '+(W+8)+'px'}),'svg',{viewBox:'0 0 '+W+' '+H,
      style:'max-width:'+W+'px;min-width:'+Math.round(.8*W)+'px'});
  var g=[];
  var cells=[];
  E(s,'text',{x:lx,y:12,'class':'m'},'key \\u2192');
  E(s,'text',{x:12,y:top,'class':'m',transform:'rotate(-90 12 '+top+')','text-anchor':'end'},
      '\\u2190 query');
  cols.forEach(function(t,j) {
    var x=lx+c*(j+.5);
    var y=top-6-pos;
    if(pos)E(s,'text',{x:x,y:top-6,'text-anchor':'middle','class':'m'},j);
    E(E(s,'text',flat?{x:x,y:y,'text-anchor':'middle'}:{x:x+4,y:y,
        transform:'rotate(-90 '+(x+4)+' '+y+')'},cut(t)),'title',{},t)
  });
  rows.forEach(function(t,i) {
    var y=top+c*i;
    var r=E(s,'g',{});
    var k;
    cells.push([]);
    g.push(r);
    E(r,'rect',{x:20,y:y,width:lx-20,height:c,fill:'transparent'});
    if(pos)E(r,'text',{x:lx-7,y:y+c/2+4,'text-anchor':'end','class':'m'},first+i);
    E(E(r,'text',{x:lx-7-pos*1.3,y:y+c/2+4,'text-anchor':'end'},cut(t)),'title',{},t);
    for(k=0;k<cols.length;k++)cells[i].push(E(r,'rect',{x:lx+c*k+1,y:y+1,width:c-2,height:c-2,
        rx:2,stroke:'#7a7a7a','stroke-opacity':.4,fill:'transparent'}))
  });
  return{svg:s,rows:g,cells:cells,x:lx,top:top,c:c,end:lx+c*cols.length}
}
function shade(cell,w,text) {
  cell.setAttribute('fill','var(--a)');
  cell.setAttribute('fill-opacity',w);
  cell.textContent='';
  E(cell,'title',{},text)
}
"""

# q the query, tau the temperature, X and Y from data to the plane of Z by Z, h the query's handle.
_RETRIEVAL = """
var L=d.lim;
var Z=320;
var box=stage();
var f=E(box,'div',{'class':'f'});
var one=d.values[0].length<2;
var s=E(f,'svg',{viewBox:'0 0 '+Z+' '+Z,style:'max-width:340px;cursor:crosshair',role:'group',
    'aria-label':'plane with the keys and the query'});
var q=d.query.slice();
var tau=d.temperature;
var k;
var X=function(x) {return Z/2+x/L*(Z/2-6)};
var Y=function(y) {return Z/2-y/L*(Z/2-6)};
E(s,'rect',{x:1,y:1,width:Z-2,height:Z-2,rx:8,fill:'transparent',stroke:'#7a7a7a',
    'stroke-opacity':.4});
for(k=-Math.floor(L);k<=L;k++) {
  E(s,'path',{d:'M'+X(k)+' 4V'+(Z-4)+'M4 '+Y(k)+'H'+(Z-4),stroke:'#7a7a7a',
      'stroke-opacity':k?.18:.55})
}
E(s,'text',{x:Z-8,y:Z/2-6,'text-anchor':'end','class':'m'},d.axes[0]+' \\u2192');
E(s,'text',{x:Z/2+7,y:16,'class':'m'},'\\u2191 '+d.axes[1]);
var dots=d.keys.map(function(p) {
  E(s,'line',{x1:X(0),y1:Y(0),x2:X(p[0]),y2:Y(p[1]),stroke:'var(--a)','stroke-opacity':.45});
  return E(s,'circle',{cx:X(p[0]),cy:Y(p[1]),fill:'var(--a)','fill-opacity':.75,
      stroke:'var(--a)'})
});
var ray=E(s,'line',{x1:X(0),y1:Y(0),stroke:'var(--b)','stroke-width':2.5});
var tags=d.labels.map(function(t) {
  return E(s,'text',{'text-anchor':'middle','class':'h','pointer-events':'none'},t)
});
var h=E(s,'g',{tabindex:0,role:'slider','aria-label':'query, move with the arrow keys',
    'aria-valuemin':-L,'aria-valuemax':L,style:'cursor:grab'});
E(h,'circle',{r:22,fill:'transparent'});
E(h,'path',{d:'M0-9L9 0 0 9-9 0Z',fill:'var(--b)'});
var tag=E(h,'text',{'text-anchor':'middle','class':'h'},'query');
var p=E(f,'div',{'class':'p'});
var lab=E(p,'label',{});
var lt=E(lab,'span');
var sl=E(lab,'input',{type:'range',min:-30,max:20,step:1,'aria-label':'temperature'});
var std=E(E(p,'div',{'class':'c'}),'button',{type:'button'},'set to \\u221ad_k = 1.41');
var bar=bars(E(p,'div',{'class':'b'}),d.labels,'weight \\u00d7 value');
var line;
var mark;
var out=E(p,'div',{'class':'o'});
var vs=d.values.map(function(v) {return v[0]});
var lo=Math.min.apply(null,vs);
var hi=Math.max.apply(null,vs);
var V=function(v) {return 12+256*(hi>lo?(v-lo)/(hi-lo):.5)};
if(one) {
  line=E(p,'svg',{viewBox:'0 0 280 40',style:'max-width:330px;margin-top:10px',
      'aria-hidden':'true'});
  E(line,'line',{x1:12,x2:268,y1:26,y2:26,stroke:'#7a7a7a'});
  vs.forEach(function(v) {
    E(line,'line',{x1:V(v),x2:V(v),y1:20,y2:32,stroke:'var(--a)','stroke-width':2})
  });
  mark=E(line,'path',{fill:'var(--b)'});
  E(line,'text',{x:12,y:12,'class':'m'},num(lo,2));
  E(line,'text',{x:268,y:12,'text-anchor':'end','class':'m'},num(hi,2))
}
function tuple(v) {
  return v.length<2?num(v[0],2):'('+v.map(function(x) {return num(x,2)}).join(', ')+')'
}
function draw(quiet) {
  var sc=d.keys.map(function(p) {return p[0]*q[0]+p[1]*q[1]});
  var m=Math.max.apply(null,sc);
  var w=sc.map(function(x) {return Math.exp((x-m)/tau)});
  var sum=w.reduce(function(a,b) {return a+b},0);
  var r=d.values[0].map(function(_,j) {
    return w.reduce(function(a,b,i) {return a+b/sum*d.values[i][j]},0)
  });
  var best=0;
  var at='('+num(q[0],2)+', '+num(q[1],2)+')';
  w=w.map(function(x) {return x/sum});
  w.forEach(function(x,i) {
    if(x>w[best])best=i;
    var y=d.keys[i][1];
    var z=3+15*Math.sqrt(x);
    dots[i].setAttribute('r',z);
    tags[i].setAttribute('x',X(d.keys[i][0]));
    tags[i].setAttribute('y',Y(y)+(y<0?z+14:-z-5));
    bar[i](x,num(x,3)+' \\u00d7 '+tuple(d.values[i]))
  });
  tag.setAttribute('y',q[1]<0?-14:24);
  ray.setAttribute('x2',X(q[0]));
  ray.setAttribute('y2',Y(q[1]));
  h.setAttribute('transform','translate('+X(q[0])+' '+Y(q[1])+')');
  h.setAttribute('aria-valuenow',q[0]);
  h.setAttribute('aria-valuetext','query at '+at);
  lt.textContent='temperature '+num(tau,2);
  sl.setAttribute('aria-valuetext',num(tau,2));
  sl.value=Math.round(Math.log10(tau)*20);
  if(one)mark.setAttribute('d','M'+V(r[0])+' 26l-6-12h12z');
  out.textContent='';
  E(out,'span',{},'query '+at+', read-out ');
  E(out,'b',{'data-out':1},tuple(r));
  if(!quiet)say('query at '+at+', temperature '+num(tau,
      2)+'. Read-out '+tuple(r)+'. Largest weight '+num(w[best],2)+' on '+d.labels[best])
}
function put(x,y) {
  var c=function(v) {return Math.max(-L,Math.min(L,Math.round(v*20)/20))};
  q=[c(x),c(y)];
  draw()
}
function drag(e) {
  var b=s.getBoundingClientRect();
  put(((e.clientX-b.left)/b.width*Z-Z/2)/(Z/2-6)*L,(Z/2-(e.clientY-b.top)/b.height*Z)/(Z/2-6)*L)
}
h.addEventListener('pointerdown',function(e) {
  h.setPointerCapture(e.pointerId);
  e.preventDefault();
  h.focus({focusVisible:false});
  h.onpointermove=drag
});
h.addEventListener('touchstart',function(e) {e.preventDefault()},{passive:false});
h.addEventListener('pointerup',function() {h.onpointermove=null});
h.addEventListener('pointercancel',function() {h.onpointermove=null});
s.addEventListener('click',drag);
h.addEventListener('keydown',function(e) {
  var v={ArrowLeft:[-1,0],ArrowRight:[1,0],ArrowUp:[0,1],ArrowDown:[0,-1]}[e.key];
  var t=e.shiftKey?.5:.1;
  if(v) {
    e.preventDefault();
    put(q[0]+v[0]*t,q[1]+v[1]*t)
  }
});
sl.addEventListener('input',function() {
  tau=Math.pow(10,sl.value/20);
  draw()
});
std.addEventListener('click',function() {
  tau=Math.SQRT2;
  draw()
});
draw(true);
"""

# h the head and i the query row that are chosen; G the grid, bar the numbers beside it.
_HEADS = """
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
"""

_MAP = """
var G=grid(E(stage(),'div',{'class':'f'}),d.queries,d.keys,0);
G.svg.setAttribute('role','img');
G.svg.setAttribute('aria-label',d.alt);
d.maps[0].forEach(function(r,i) {
  r.forEach(function(w,j) {
    var c=G.cells[i][j];
    shade(c,w/1000*.85,'query '+d.queries[i]+', key '+d.keys[j]+': '+num(w/1000,3));
    if(G.c>=30)E(G.rows[i],'text',{x:G.x+G.c*(j+.5),y:G.top+G.c*(i+.5)+4,'text-anchor':'middle',
        style:'font-size:11px;pointer-events:none'},num(w/1000,2))
  })
});
"""

# `see` is what each block lets through, on absolute positions q and k: tests hold it against tx.
# terms the blocks in order, combined from left to right; hand the cells changed by hand.
_MASK = """
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
    var x=E(g,'button',{type:'button','aria-label':'remove '+t.kind},'\\u00d7');
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
"""


class Widget:
    """What a cell shows: `_repr_html_` for the page, the same facts as text for `repr`."""

    def __init__(self, html, text):
        self.html = html
        self.text = text

    def _repr_html_(self):
        return self.html

    def __repr__(self):
        return self.text


def retrieval(
    query, keys, values, labels, *, temperature=1.0, axes=("first", "second"), title=None
):
    """A query on a plane of keys: drag it, change the temperature, watch weights and read-out.

    The weights are softmax(q·k / temperature); a button sets the temperature to √d_k = √2.

    Args:
        query: (2,) where the query starts.
        keys: (S, 2).
        values: (S,) numbers, or (S, d_v) rows of numbers.
        labels: S strings, the names of the keys.
        temperature: where the slider starts, 0.04 … 10.
        axes: what the two features mean, in a word or two each.
        title: the line above the widget.

    Raises:
        ValueError: shapes do not fit, or the temperature is outside the slider.

    Example:
        >>> widgets.retrieval(
        ...     query=[1.0, 0.4], keys=[[1.4, 0.2], [0.3, 1.5], [-1.2, -0.6]],
        ...     values=[20.0, 60.0, 90.0], labels=["cat", "cow", "eel"],
        ...     axes=("purrs", "gives milk"))
    """
    query, keys, values = _rounded(query), _rounded(keys), _rounded(values)
    values = [v if isinstance(v, list) else [v] for v in values]
    _check_plane(query, keys, values, labels)
    if not 0.03 <= temperature <= 10:
        raise ValueError(f"temperature is {temperature}: the slider goes from 0.03 to 10")
    scores = [query[0] * k[0] + query[1] * k[1] for k in keys]
    raw = [math.exp((s - max(scores)) / temperature) for s in scores]
    weights = [e / sum(raw) for e in raw]
    read_out = [
        sum(w * v[j] for w, v in zip(weights, values, strict=True)) for j in range(len(values[0]))
    ]
    rows = [
        [name, _tuple(k, 2), f"{s:.2f}", f"{w:.3f}", _tuple(v, 2)]
        for name, k, s, w, v in zip(labels, keys, scores, weights, values, strict=True)
    ]
    caption = (
        f"The query is {_tuple(query, 2)}, the temperature {temperature:.2f}. "
        f"The read-out, the values weighted, is {_tuple(read_out, 2)}."
    )
    reach = max(abs(x) for point in [query, *keys] for x in point)
    data = {
        "query": query,
        "keys": keys,
        "values": values,
        "labels": list(labels),
        "temperature": temperature,
        "axes": list(axes),
        "lim": math.ceil(1.2 * reach * 2) / 2,
    }
    how = "Drag the query, or move it with the arrow keys; the slider changes the temperature."
    head = ["key", "position", "score q·k", "weight", "value"]
    return _widget(
        "retrieval",
        title or "Which key answers the query?",
        how,
        _RETRIEVAL,
        data,
        caption,
        head,
        rows,
    )


def heads(tokens, maps, *, keys=None, names=None, title=None):
    """The attention maps of several heads: choose a head and a query, read the weights.

    Args:
        tokens: T strings, the queries; also the keys unless `keys` is given.
        maps: (H, T, S) attention weights; shown to three digits.
        keys: S strings, for T ≠ S or when queries and keys come from different texts.
        names: H strings; "head 0", "head 1" … by default.
        title: the line above the widget.

    Raises:
        ValueError: shapes do not fit, or the maps are too large for a page (H·T·S over about 4000).

    Example:
        >>> out, weights = attention(q, k, v, return_weights=True)      # weights (B, H, T, S)
        >>> widgets.heads(tokens, weights[0], names=["looks back", "looks at itself"])
    """
    maps, tokens, keys = _thousandths(maps), list(tokens), list(tokens if keys is None else keys)
    names = [f"head {h}" for h in range(len(maps))] if names is None else list(names)
    _check_maps(maps, tokens, keys)
    if len(names) != len(maps):
        raise ValueError(f"{len(names)} names for {len(maps)} heads")
    rows = [[token, *(_strongest(m[i], keys) for m in maps)] for i, token in enumerate(tokens)]
    caption = "For each query (row) and head (column): the key with the largest weight."
    how = "Choose a head, then a query row (mouse, touch or arrow keys). A row's weights sum to 1."
    data = {"queries": tokens, "keys": keys, "maps": maps, "names": names}
    return _widget(
        "heads",
        title or "Where does each head look?",
        how,
        _HEADS,
        data,
        caption,
        ["query", *names],
        rows,
    )


def attention_map(weights, queries, keys=None, *, title=None):
    """One attention map as a picture: rows are queries, columns keys, numbers where they fit.

    Args:
        weights: (T, S), non-negative, at most 1.
        queries: T strings.
        keys: S strings; the queries again by default.
        title: the line above the picture.

    Raises:
        ValueError: shapes do not fit, or the map is too large for a page.

    Example:
        >>> widgets.attention_map(weights[0, 0], tokens, title="Head 0 copies the previous token")
    """
    queries, keys = list(queries), list(queries if keys is None else keys)
    maps = _thousandths([_plain(weights)])
    _check_maps(maps, queries, keys)
    rows = [[q, *(f"{w / 1000:.2f}" for w in row)] for q, row in zip(queries, maps[0], strict=True)]
    pairs = zip(queries, maps[0], strict=True)
    strongest = "; ".join(f"{q}: {_strongest(row, keys)}" for q, row in pairs)
    data = {
        "queries": queries,
        "keys": keys,
        "maps": maps,
        "alt": f"Attention map. The key with the largest weight for each query: {strongest}.",
    }
    caption = "Weights: each row is a query, each column a key."
    return _widget(
        "map",
        title or "Attention weights",
        caption[9:].capitalize(),
        _MAP,
        data,
        caption,
        ["query", *keys],
        rows,
    )


def mask_editor(
    T, S, *, tokens=None, start="causal()", real=None, ids=None, window=3, prefix=2, title=None
):
    """Masks out of blocks, combined with & and |, or cell by cell; shows the `tx` expression.

    The T queries are the last of the S tokens (bottom-right alignment); a slider changes T. Blocks
    are combined from left to right, and parentheses are shown where Python needs them.

    Args:
        T: number of queries at the start, 1 … S.
        S: number of keys.
        tokens: S strings; "0", "1" … by default.
        start: the expression at the start, in tx's words: "causal() & window(3)",
            "(causal() | prefix(2)) & padding(real)", "everything()".
        real: (S,) booleans, True = a real token; offers the block padding(real).
        ids: (S,) integers, the document of each token; offers the block documents(ids).
        window: W when the block window is added.
        prefix: length when the block prefix is added.
        title: the line above the widget.

    Raises:
        ValueError: sizes do not fit, or `start` is not an expression the editor can show.

    Example:
        >>> widgets.mask_editor(4, 6, tokens="the cat sat on the mat".split(),
        ...                     start="causal() & window(3)", ids=[0, 0, 0, 1, 1, 1])
    """
    numbered = tokens is None
    tokens = [str(k) for k in range(S)] if numbered else list(tokens)
    real = None if real is None else [bool(x) for x in _plain(real)]
    ids = None if ids is None else [int(x) for x in _plain(ids)]
    if not 1 <= T <= S:
        raise ValueError(f"T is {T} and S is {S}: the queries are the last T of the S tokens")
    for name, given in (("tokens", tokens), ("real", real), ("ids", ids)):
        if given is not None and len(given) != S:
            raise ValueError(f"{name} has {len(given)} entries for S = {S} keys")
    terms = _terms(start, real, ids)
    grid = _grid(terms, T, S, real, ids)
    rows = [
        [f"{S - T + i} {tokens[S - T + i]}", *("●" if x else "·" for x in row), str(sum(row))]
        for i, row in enumerate(grid)
    ]
    given = f", real = {[int(x) for x in real]}" if "real" in start else ""
    given += f", ids = {ids}" if "ids" in start else ""
    caption = f"{start}, T = {T}, S = {S}{given}: a row is a query, ● means it sees that key."
    how = "Add blocks, press & or | to change how they combine, press a cell to change it by hand."
    data = {
        "T": T,
        "tokens": tokens,
        "numbered": numbered,
        "terms": terms,
        "real": real,
        "ids": ids,
        "window": window,
        "prefix": prefix,
    }
    return _widget(
        "mask",
        title or "Who may look where?",
        how,
        _MASK,
        data,
        caption,
        ["query", *tokens, "sees"],
        rows,
    )


def _widget(kind, title, how, script, data, caption, head, rows):
    """Put title, table and script together as one Widget; the table is what survives stripping."""
    packed = json.dumps(data | {"how": how}, ensure_ascii=False, separators=(",", ":"))
    packed = packed.replace("<", "\\u003c").replace("\u2028", "").replace("\u2029", "")
    digest = hashlib.sha256((title + packed).encode()).hexdigest()[:10]
    name = f"txw-{kind}-{digest}"
    cells = "".join(f'<th scope="col">{escape(h)}</th>' for h in head)
    body = "".join(
        f'<tr><th scope="row">{escape(row[0])}</th>'
        + "".join(f"<td>{escape(cell)}</td>" for cell in row[1:])
        + "</tr>"
        for row in rows
    )
    html = (
        f'<div class="txw" id="{name}" role="group" aria-label="{escape(title)}" '
        "data-lm-suppress-shortcuts>"  # JupyterLab would take the arrow keys
        f'<style>{_CSS}</style><div class="t">{escape(title)}</div>'
        f'<div class="n">{_STRIPPED}</div>'
        f"<details open><summary>The starting numbers as a table</summary>"
        f'<div class="w"><table><caption>{escape(caption)}</caption>'
        f"<thead><tr>{cells}</tr></thead><tbody>{body}</tbody></table></div></details>"
        f"<script>(function(root,d){{{_JS}{script}}})"
        f"((document.currentScript||{{}}).parentNode||document.getElementById('{name}'),{packed});"
        f"</script></div>"
    )
    size = len(html.encode())
    if size > _MAX_BYTES:
        raise ValueError(
            f"this widget takes {size:,} bytes and a page allows {_MAX_BYTES:,}: "
            "show fewer tokens or fewer heads"
        )
    return Widget(html, _as_text(title, caption, head, rows))


def _as_text(title, caption, head, rows):
    """Title, caption and an aligned table, for a terminal."""
    wide = [max(len(row[j]) for row in [head, *rows]) for j in range(len(head))]
    lines = ["  ".join(c.rjust(w) for c, w in zip(row, wide, strict=True)) for row in [head, *rows]]
    return "\n".join([title, caption, *lines])


def _plain(x):
    """Nested lists of numbers, whether x is a tensor, an array or nested lists already."""
    return x.tolist() if hasattr(x, "tolist") else [_plain(y) for y in x] if _nested(x) else list(x)


def _nested(x):
    return any(hasattr(y, "__len__") or hasattr(y, "tolist") and y.shape for y in x)


def _rounded(x):
    """As nested lists with three digits, so that the last bits of a float do not show."""
    x = _plain(x)
    return [_rounded(y) if isinstance(y, list) else round(float(y), 3) for y in x]


def _thousandths(maps):
    """(H, T, S) weights as integers 0 … 1000, which take half the room of decimals."""
    return [[[round(1000 * float(w)) for w in row] for row in m] for m in _plain(maps)]


def _tuple(v, digits):
    numbers = [f"{x:.{digits}f}" for x in v]
    return numbers[0] if len(v) == 1 else f"({', '.join(numbers)})"


def _strongest(row, keys):
    best = max(range(len(row)), key=row.__getitem__)
    return f"{keys[best]} {row[best] / 1000:.2f}"


def _check_plane(query, keys, values, labels):
    if len(query) != 2 or any(not isinstance(k, list) or len(k) != 2 for k in keys):
        raise ValueError("the plane has two axes: query is (2,), keys are (S, 2)")
    if not len(keys) == len(values) == len(labels):
        raise ValueError(f"{len(keys)} keys, {len(values)} values and {len(labels)} labels")


def _check_maps(maps, queries, keys):
    for h, m in enumerate(maps):
        if len(m) != len(queries) or any(len(row) != len(keys) for row in m):
            raise ValueError(
                f"map {h} is ({len(m)}, {len(m[0])}), the tokens say "
                f"({len(queries)}, {len(keys)}) = (queries, keys)"
            )
    if not all(0 <= w <= 1000 for m in maps for row in m for w in row):
        raise ValueError("attention weights lie between 0 and 1")


_BLOCK = re.compile(r"([&|]?)\s*(causal|window|padding|prefix|documents)\((\w*)\)")


def _terms(start, real, ids):
    """The blocks of an expression, left to right: [{"kind", "op", "n"}]."""
    if start == "everything()":
        return []
    terms = [
        {"kind": kind, "op": op or "&", "n": int(n) if n.isdigit() else None}
        for op, kind, n in _BLOCK.findall(start)
    ]
    if _named(terms) != start:
        raise ValueError(
            f"start is {start!r}: write blocks combined from left to right, as in "
            "'(causal() | prefix(2)) & padding(real)'; names are real and ids"
        )
    kinds = {t["kind"] for t in terms}
    if "padding" in kinds and real is None or "documents" in kinds and ids is None:
        raise ValueError(f"{start} needs real= (for padding) or ids= (for documents)")
    return terms


def _named(terms):
    """The tx expression of blocks combined from left to right; the script says the same."""
    text, either = "", False
    for i, t in enumerate(terms):
        inside = {"causal": "", "padding": "real", "documents": "ids"}.get(t["kind"], t["n"])
        me = f"{t['kind']}({inside})"
        if i == 0:
            text = me
            continue
        if t["op"] == "&" and either:
            text = f"({text})"
        either = t["op"] == "|"
        text = f"{text} {t['op']} {me}"
    return text


def _grid(terms, T, S, real, ids):
    """The blocks' mask as tx computes it: T lists of S booleans."""
    import torch  # here, so that widgets without a mask need no torch

    from tx import masks

    given = {
        "causal": (),
        "padding": (real and torch.tensor([real]),),  # (1, S)
        "documents": (ids and torch.tensor([ids]),),  # (1, S)
    }
    mask = masks.everything()
    for i, t in enumerate(terms):
        block = getattr(masks, t["kind"])(*given.get(t["kind"], (t["n"],)))
        mask = block if i == 0 else mask | block if t["op"] == "|" else mask & block
    return mask.dense((1, 1, T, S)).expand(1, 1, T, S)[0, 0].tolist()
