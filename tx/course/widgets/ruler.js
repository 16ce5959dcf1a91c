// Three rulers of distances, a mark for each bucket; the slider chooses a distance.
var N=d.one.length;
var box=stage();
var W=340;
var C=(W-6)/N;
var s=E(E(box,'div',{'class':'s'}),'svg',{viewBox:'0 0 '+W+' 156',style:'max-width:560px;min-width:300px',
    role:'img','aria-label':'three rulers of distances, cut into buckets'});
var at=d.start;
var names={one:'decoder, back',past:'encoder, back',future:'encoder, ahead'};
var marks=Object.keys(names).map(function(key,row) {
  var y=18+row*46;
  var b=d[key];
  E(s,'text',{x:3,y:y-5,'class':'m'},names[key]);
  var i=0;
  while(i<N) {
    var j=i;
    while(j<N&&b[j]==b[i])j++;
    E(s,'rect',{x:3+C*i,y:y,width:C*(j-i),height:24,fill:'var(--a)','fill-opacity':b[i]%2?.12:.38,
        stroke:'#7a7a7a','stroke-opacity':.5});
    if(C*(j-i)>7*String(b[i]).length)E(s,'text',{x:3+C*(i+j)/2,y:y+16,'text-anchor':'middle'},b[i]);
    i=j
  }
  return E(s,'path',{fill:'var(--b)'})
});
[0,(N-1)/2|0,N-1].forEach(function(t) {
  E(s,'text',{x:3+C*(t+.5),y:152,'text-anchor':t?t<N-1?'middle':'end':'start','class':'m'},t)
});
var lab=E(box,'label',{});
var text=E(lab,'span');
var sl=E(lab,'input',{type:'range',min:0,max:N-1,step:1,'aria-label':'distance'});
var out=E(box,'div',{'class':'o'});
function draw(quiet) {
  var t='bucket '+d.one[at]+' of a decoder, '+d.past[at]+' or '+d.future[at]+' of an encoder';
  marks.forEach(function(m,row) {
    m.setAttribute('d','M'+(3+C*(at+.5))+' '+(42+row*46)+'l-5 8h10z')
  });
  sl.value=at;
  text.textContent='distance '+at;
  out.textContent='';
  E(out,'b',{'data-out':1},t);
  if(!quiet)say('distance '+at+': '+t)
}
sl.addEventListener('input',function() {
  at=+sl.value;
  draw()
});
draw(true);
