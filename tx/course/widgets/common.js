// The scripts of this folder are pieces of one function(root, d), this one first: root is the element
// of the widget, d its data. Lines that start with two slashes are not sent to the page.
//
// `E` makes an element, `say` fills the live region once things have come to rest, `grid` draws rows
// of queries against columns of keys, `bars` a list of labelled numbers, `rove` arrow keys.
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
function num(x,n) {return x.toFixed(n).replace(/^-(0(\.0+)?)$/,'$1').replace('-','\u2212')}
function say(s) {
  clearTimeout(timer);
  timer=setTimeout(function() {live.textContent=s},250)
}
function cut(s) {return s.length>12?s.slice(0,11)+'\u2026':s}
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
  E(s,'text',{x:lx,y:12,'class':'m'},'key \u2192');
  E(s,'text',{x:12,y:top,'class':'m',transform:'rotate(-90 12 '+top+')','text-anchor':'end'},
      '\u2190 query');
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
