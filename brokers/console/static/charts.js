"use strict";
// Charts: the figures under the pointer, and no new charts while somebody looks at these.
document.addEventListener("pointerover", (event) => {
  const at = event.target.closest("rect.at");
  if (at) at.closest("figure").querySelector("output").textContent = at.querySelector("title").textContent;
});
document.addEventListener("htmx:beforeRequest", (event) => {
  const busy = event.detail.elt.id === "charts" && event.detail.elt.querySelector(".plot:hover, .plot details[open]");
  if (busy) event.preventDefault();
});
