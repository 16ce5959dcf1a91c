// q the query, tau the temperature, X and Y from data to the plane of Z by Z, h the query's handle.
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
E(s,'text',{x:Z-8,y:Z/2-6,'text-anchor':'end','class':'m'},d.axes[0]+' \u2192');
E(s,'text',{x:Z/2+7,y:16,'class':'m'},'\u2191 '+d.axes[1]);
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
var std=E(E(p,'div',{'class':'c'}),'button',{type:'button'},'set to \u221ad_k = 1.41');
var bar=bars(E(p,'div',{'class':'b'}),d.labels,'weight \u00d7 value');
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
    bar[i](x,num(x,3)+' \u00d7 '+tuple(d.values[i]))
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
