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
