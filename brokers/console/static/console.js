// Keys, and the live tail. Every page works without this file. No markup is made from data: only text is set.
"use strict";
(() => {
  const typing = (at) => at.closest("input, textarea, select, [contenteditable]") !== null;
  let pages = false;
  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || typing(event.target)) return;
    if (pages) {
      pages = false;
      const link = [...document.querySelectorAll("header nav a")].find(
        (one) => one.textContent.toLowerCase().startsWith(event.key.toLowerCase()));
      if (link) { event.preventDefault(); link.click(); }
    } else if (event.key === "g") {
      pages = true;
    } else if (event.key === "/") {
      const field = document.querySelector("[data-search]");
      if (field) { event.preventDefault(); field.focus(); field.select(); }
    } else if (event.key === "?") {
      document.querySelector("footer").scrollIntoView();
    }
  });
})();
