// One step at a time: two buttons, and arrow keys wherever the focus is inside. Nothing moves by itself.
// root is the stepper. Where this does not run, all steps stay stacked. Lines of `//` are not sent.
var steps=[].slice.call(root.querySelectorAll('li'));
var at=0;
function make(parent,tag,attributes,text) {
  var e=document.createElement(tag);
  for(var k in attributes)e.setAttribute(k,attributes[k]);
  e.textContent=text||'';
  return parent.appendChild(e)
}
var bar=make(root,'div',{'class':'bar'});
var back=make(bar,'button',{type:'button','aria-label':'previous step'},'\u2039');
var count=make(bar,'span',{'class':'n'});
var next=make(bar,'button',{type:'button','aria-label':'next step'},'\u203a');
var live=make(root,'div',{'class':'v','aria-live':'polite'});
function show(to,quiet) {
  to=Math.max(0,Math.min(steps.length-1,to));
  root.classList.toggle('ahead',to>at);
  at=to;
  steps.forEach(function(li,i) {li.classList.toggle('now',i==at)});
  count.textContent=at+1+' / '+steps.length;
  back.setAttribute('aria-disabled',at==0);
  next.setAttribute('aria-disabled',at==steps.length-1);
  if(!quiet)live.textContent='Step '+(at+1)+': '+steps[at].querySelector('p').textContent
}
back.addEventListener('click',function() {show(at-1)});
next.addEventListener('click',function() {show(at+1)});
root.addEventListener('keydown',function(e) {
  var to={ArrowLeft:at-1,ArrowRight:at+1,Home:0,End:steps.length-1}[e.key];
  if(to==null||e.altKey||e.ctrlKey||e.metaKey||e.shiftKey)return;
  e.preventDefault();
  e.stopPropagation();
  show(to)
});
root.tabIndex=0;
root.classList.add('on');
show(0,true);
