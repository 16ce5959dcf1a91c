// m and n positions of query and key; a vector is drawn as it is (thin) and turned (thick).
var Z=300;
var L=1.1*Math.max(Math.hypot(d.q[0],d.q[1]),Math.hypot(d.k[0],d.k[1]));
var f=E(stage(),'div',{'class':'f'});
var s=E(f,'svg',{viewBox:'0 0 '+Z+' '+Z,style:'max-width:300px',role:'img',
    'aria-label':'plane with a query and a key, as they are and turned'});
var m=d.m;
var n=d.n;
var X=function(x) {return Z/2+x/L*(Z/2-16)};
var Y=function(y) {return Z/2-y/L*(Z/2-16)};
E(s,'rect',{x:1,y:1,width:Z-2,height:Z-2,rx:8,fill:'transparent',stroke:'#7a7a7a','stroke-opacity':.4});
E(s,'path',{d:'M'+X(0)+' 4V'+(Z-4)+'M4 '+Y(0)+'H'+(Z-4),stroke:'#7a7a7a','stroke-opacity':.4});
function vector(v,color,text) {
  var r=Math.hypot(v[0],v[1])/L*(Z/2-16);
  E(s,'circle',{cx:X(0),cy:Y(0),r:r,fill:'none',stroke:color,'stroke-opacity':.3});
  E(s,'line',{x1:X(0),y1:Y(0),x2:X(v[0]),y2:Y(v[1]),stroke:color,'stroke-dasharray':'3 3'});
  var ray=E(s,'line',{x1:X(0),y1:Y(0),stroke:color,'stroke-width':3});
  var end=E(s,color=='var(--b)'?'path':'circle',color=='var(--b)'?{d:'M0-8L8 0 0 8-8 0Z',fill:color}:
      {r:6,fill:color});
  var tag=E(s,'text',{'text-anchor':'middle','class':'h'},text);
  return function(t) {
    var c=Math.cos(t*d.w);
    var g=Math.sin(t*d.w);
    var w=[v[0]*c-v[1]*g,v[1]*c+v[0]*g];
    ray.setAttribute('x2',X(w[0]));
    ray.setAttribute('y2',Y(w[1]));
    end.setAttribute('transform','translate('+X(w[0])+' '+Y(w[1])+')');
    tag.setAttribute('x',X(w[0]));
    tag.setAttribute('y',Y(w[1])+(w[1]<0?20:-12));
    return w
  }
}
var key=vector(d.k,'var(--a)','key');
var query=vector(d.q,'var(--b)','query');
var p=E(f,'div',{'class':'p'});
function slider(name,change) {
  var lab=E(p,'label',{});
  var text=E(lab,'span');
  var e=E(lab,'input',{type:'range',min:0,max:d.last,step:1,'aria-label':name});
  e.addEventListener('input',function() {
    change(+e.value);
    draw()
  });
  return function(v) {
    e.value=v;
    text.textContent=name+' '+v
  }
}
var sm=slider('position m of the query',function(v) {m=v});
var sn=slider('position n of the key',function(v) {n=v});
var both=slider('both together, from',function(v) {
  var t=Math.max(-Math.min(m,n),Math.min(d.last-Math.max(m,n),v-Math.min(m,n)));
  m+=t;
  n+=t
});
var out=E(p,'div',{'class':'o'});
function draw(quiet) {
  var a=query(m);
  var b=key(n);
  var t=num(a[0]*b[0]+a[1]*b[1],3);
  sm(m);
  sn(n);
  both(Math.min(m,n));
  out.textContent='';
  E(out,'span',{},'shift m \u2212 n = '+num(m-n,0)+', score ');
  E(out,'b',{'data-out':1},t);
  if(!quiet)say('query at '+m+', key at '+n+', shift '+num(m-n,0)+', score '+t)
}
draw(true);
