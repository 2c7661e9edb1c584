// Keys, and the live tail. Every page works without this file. No markup is made from data: only text is set.
"use strict";
(() => {
  const typing = (at) => at.closest("input, textarea, select, dialog, [contenteditable]") !== null;
  const KEYS = [["/", "find a topic, group, broker or page"], ["f", "the page's own filter"], ["g", "then a page's first letter: go there"],
    ["e", "expand all values, or close them"], ["Esc", "close"], ["?", "this help"]];
  const element = (name, parent, text) => {
    const made = document.createElement(name);
    if (text) made.textContent = text;
    parent.append(made);
    return made;
  };
  const help = () => {
    const dialog = element("dialog", document.body);
    element("h2", dialog, "Keys");
    const list = element("dl", dialog);
    for (const [key, words] of KEYS) { element("kbd", element("dt", list), key); element("dd", list, words); }
    element("button", dialog, "Close").addEventListener("click", () => dialog.close());
    dialog.addEventListener("close", () => dialog.remove());
    dialog.showModal();
  };

  // What scrolls and has nothing to go to by key is gone to itself, and is named after what stands above it.
  const reachable = () => {
    for (const one of document.querySelectorAll("main .wide, main pre")) {
      sizes.observe(one.firstElementChild || one);
      const scrolls = one.scrollWidth > one.clientWidth + 1 || one.scrollHeight > one.clientHeight + 1;
      if (!scrolls || one.querySelector("a, button, input, select, summary")) {
        if (one.role === "group") for (const name of ["tabindex", "role", "aria-label"]) one.removeAttribute(name);
        continue;
      }
      let before = one;
      while (before && !/^H[1-6]$/.test(before.tagName)) before = before.previousElementSibling || before.parentElement;
      [one.tabIndex, one.role, one.ariaLabel] = [0, "group", `${before ? before.textContent.trim() : document.title}, scrolls`];
    }
  };
  const sizes = new ResizeObserver(reachable);
  sizes.observe(document.querySelector("main"));
  document.addEventListener("htmx:afterSettle", reachable);

  // The palette is the page /find over any other.
  const palette = () => {
    const dialog = element("dialog", document.body);
    dialog.className = "palette";
    const field = element("input", dialog);
    [field.type, field.placeholder] = ["search", "Topic, group, broker or page"];
    for (const [name, value] of [["aria-label", field.placeholder], ["role", "combobox"], ["aria-controls", "found"], ["aria-expanded", "true"]]) field.setAttribute(name, value);
    const list = element("ul", dialog);
    [list.className, list.id, list.role] = ["results", "found", "listbox"];
    let asked = 0, chosen = 0;
    const choose = (step) => {
      const all = [...list.querySelectorAll("a")];
      chosen = all.length ? (chosen + step + all.length) % all.length : 0;
      all.forEach((one, i) => { [one.id, one.role, one.ariaSelected, one.parentElement.role] = [`found-${i}`, "option", String(i === chosen), "presentation"]; });
      field.setAttribute("aria-activedescendant", all.length ? `found-${chosen}` : "");
      all[chosen]?.scrollIntoView({ block: "nearest" });
    };
    const ask = async () => {
      const mine = ++asked;
      try {
        const answer = await fetch(`${document.querySelector("[data-find]").getAttribute("href")}?q=${encodeURIComponent(field.value)}`, { headers: { Accept: "text/html", "Fleetlog-Automatic": "true" } });
        const page = new DOMParser().parseFromString(await answer.text(), "text/html").querySelector("#results");
        if (mine !== asked) return;
        if (page === null) throw new Error("the console does not answer with results: reload the page");
        list.replaceChildren(...page.children);
        chosen = 0;
        choose(0);
      } catch (error) {
        list.replaceChildren();
        element("li", list, error.message);
      }
    };
    let timer = 0;
    field.addEventListener("input", () => { clearTimeout(timer); timer = setTimeout(ask, 150); });
    dialog.addEventListener("keydown", (event) => {
      if (event.key === "ArrowDown" || event.key === "ArrowUp") { event.preventDefault(); choose(event.key === "ArrowDown" ? 1 : -1); }
      if (event.key === "Enter") list.querySelectorAll("a")[chosen]?.click();
    });
    dialog.addEventListener("click", (event) => { if (event.target === dialog) dialog.close(); });
    dialog.addEventListener("close", () => dialog.remove());
    dialog.showModal();
    ask();
  };
  document.querySelector("[data-find]")?.addEventListener("click", (event) => { event.preventDefault(); palette(); });

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
      event.preventDefault();
      palette();
    } else if (event.key === "f") {
      const field = document.querySelector("[data-search]");
      if (field) { event.preventDefault(); field.focus(); field.select(); }
    } else if (event.key === "e") {
      document.querySelector("[data-expand]:not([hidden])")?.click();
    } else if (event.key === "?") {
      help();
    }
  });

  // One box picks all that are shown; the list may be another one by then.
  const picks = () => document.querySelectorAll("[data-pick-all]").forEach((one) => { one.hidden = false; });
  picks();
  document.addEventListener("htmx:afterSwap", picks);
  document.addEventListener("change", (event) => {
    if (!event.target.matches("[data-pick-all]")) return;
    event.target.closest("form").querySelectorAll("tbody input[type=checkbox]").forEach((one) => { one.checked = event.target.checked; });
  });

  // Addresses of forms have only what was filled in, or chosen otherwise than it stands at first.
  document.addEventListener("formdata", (event) => {
    if (event.target.method !== "get") return;
    for (const [name, value] of [...event.formData]) {
      const field = event.target.elements[name];
      if (value === "" || field?.selectedIndex === 0) event.formData.delete(name);
    }
  });

  // A name in a tree of JSON is a button: what can be done with the value beside it.
  let menu = null;
  const close = () => { menu?.remove(); menu = null; };
  const quoted = (text) => `'${text.replace(/['"\\]/g, "\\$&")}'`;
  const given = new URLSearchParams(location.search);
  const messages = location.pathname.replace(/record$/, "messages");
  const onward = (changes) => {
    const asked = new URLSearchParams(location.pathname === messages ? location.search : "");
    for (const [name, value] of Object.entries(changes)) asked.set(name, value);
    asked.delete("cursor");
    location.assign(`${messages}?${asked}`);
  };
  const offer = (name) => {
    close();
    const path = name.dataset.path;
    const literal = name.nextElementSibling.textContent;
    const whole = !literal.endsWith("\u2026");
    const text = whole && literal.startsWith('"') ? JSON.parse(literal) : literal;
    const acts = [["Copy the path", () => navigator.clipboard.writeText(path)],
      ["Show as a column", () => onward({ columns: given.get("columns") ? `${given.get("columns")}, ${path}` : path })]];
    if (whole) {
      acts.unshift(["Copy the value", () => navigator.clipboard.writeText(text)]);
      const condition = `${path} == ${literal.startsWith('"') ? quoted(text) : literal}`;
      acts.push(["Filter by this value", () => onward({ filter: given.get("filter") ? `(${given.get("filter")}) && ${condition}` : condition })]);
    }
    menu = document.createElement("div");
    [menu.className, menu.role] = ["menu", "menu"];
    for (const [words, act] of acts) {
      const one = document.createElement("button");
      [one.type, one.textContent, one.role] = ["button", words, "menuitem"];
      one.addEventListener("click", () => { close(); act(); name.focus(); });
      menu.append(one);
    }
    const at = name.getBoundingClientRect();
    document.body.append(menu);
    menu.style.top = `${at.bottom + scrollY + 4}px`;
    menu.style.left = `${Math.max(8, Math.min(at.left, innerWidth - menu.offsetWidth - 8)) + scrollX}px`;
    menu.firstElementChild.focus();
  };
  const ready = (tree) => tree.querySelectorAll("[data-path]").forEach((name) => { [name.role, name.tabIndex] = ["button", 0]; });
  document.querySelectorAll("ul.tree").forEach(ready);
  document.addEventListener("click", (event) => {
    const name = event.target.closest("[data-path]");
    if (name !== null) { event.preventDefault(); offer(name); } else if (!event.target.closest(".menu")) close();
  });
  document.addEventListener("keydown", (event) => {
    if (event.target.matches("[data-path]") && ["Enter", " "].includes(event.key)) { event.preventDefault(); offer(event.target); }
    if (menu !== null && event.key === "Escape") close();
    if (menu !== null && ["ArrowDown", "ArrowUp"].includes(event.key)) {
      event.preventDefault();
      const [acts, step] = [[...menu.children], event.key === "ArrowDown" ? 1 : -1];
      acts.at((acts.indexOf(document.activeElement) + step) % acts.length).focus();
    }
  });

  const form = document.querySelector("main form.search");
  const table = document.querySelector("#messages");
  if (form === null || table === null) return;
  const rows = table.tBodies[0];
  // A page's part is what the server makes of the form: its rows are moved here, which holds no markup but the server's.
  const part = async (more) => {
    const asked = new URLSearchParams(new FormData(form));
    for (const [name, value] of Object.entries(more)) asked.set(name, value);
    const answer = await fetch(`${form.getAttribute("action")}?${asked}`, { headers: { Accept: "text/html", "Fleetlog-Automatic": "true" } });
    const page = new DOMParser().parseFromString(await answer.text(), "text/html");
    const got = page.querySelector("#messages");
    if (got === null) throw new Error(page.querySelector("[role=alert]")?.textContent || "the console asks for a login: reload the page");
    ready(got);
    const found = [...got.tBodies[0].rows].filter((row) => row.querySelector("td.none[colspan]") === null);
    return { ...got.dataset, rows: found };
  };
  const expand = document.querySelector("[data-expand]");
  expand.hidden = table.querySelector("details.json") === null;
  expand.addEventListener("click", () => {
    const open = expand.getAttribute("aria-pressed") === "false";
    expand.setAttribute("aria-pressed", String(open));
    expand.textContent = open ? "Close all" : "Expand all";
    table.querySelectorAll("details.json").forEach((one) => { one.open = open; });
  });
  const fill = () => rows.querySelectorAll("td.none[colspan]").forEach((one) => one.closest("tr").remove());
  const count = (number) => Number(number).toLocaleString("en");

  // Search on: page after page from the cursor, until enough was found, all was searched, or one says stop.
  const searchOn = document.querySelector("[data-search-on]");
  if (searchOn !== null) {
    const [press, bar, says] = ["button", "progress", "span"].map((one) => searchOn.querySelector(one));
    const onward = document.querySelector(".pages input[name=cursor]");
    const wanted = Number(form.elements.count.value) || 50;
    const LOOKED_MAX = 2000000;
    let searching = false, cursor = table.dataset.following, looked = Number(table.dataset.scanned), kept = rows.querySelectorAll("td.n").length / 2;
    const on = async () => {
      let left = Number(table.dataset.left);
      const whole = Number(table.dataset.left) + looked;
      try {
        while (searching && cursor && kept < wanted && looked < LOOKED_MAX) {
          const page = await part({ cursor, count: wanted - kept });
          if (page.rows.length) fill();
          rows.append(...page.rows);
          [kept, looked, cursor, left] = [kept + page.rows.length, looked + Number(page.scanned), page.following, Number(page.left)];
          [bar.max, bar.value] = [whole, whole - left];
          says.textContent = `${count(looked)} searched, ${kept} found, about ${count(left)} offsets left`;
          if (onward) onward.value = cursor;
        }
        if (searching) says.textContent += cursor ? "" : ": that is all";
      } catch (error) {
        says.textContent = `${error.message}; stopped`;
      }
      searching = false;
      press.textContent = "Search on";
      press.disabled = !cursor;
      if (onward) onward.closest("nav").hidden = !cursor;
    };
    searchOn.hidden = false;
    press.addEventListener("click", () => {
      searching = !searching;
      press.textContent = searching ? "Stop" : "Search on";
      if (searching) on();
    });
  }

  // Follow live: the records behind the page's end, once a second, as many at a time as one chose. Those are left out
  // that come faster than that, and the page says how many offsets they are, and how many come in a second.
  const tail = document.querySelector("[data-tail]");
  const [button, rate, status] = ["button", "select", "span"].map((one) => tail.querySelector(one));
  const KEPT = 500, LOOKS = 5;
  let following = false, cursor = "", shown = 0, left = 0, looks = [];
  const look = async () => {
    if (!following) return;
    try {
      const page = await part({ from: "end", at: "", count: rate.value, cursor });
      if (page.rows.length) fill();
      page.rows.forEach((row) => rows.prepend(row));
      while (rows.rows.length > KEPT) rows.deleteRow(-1);
      shown += page.rows.length;
      const full = page.cut || page.rows.length >= Number(rate.value);
      if (full) left += Number(page.behind);
      const came = full ? page.rows.length + Number(page.behind) : Number(page.scanned);
      if (cursor) looks.push([Date.now(), came]);
      else looks = [[Date.now(), 0]];
      if (looks.length > LOOKS) looks.shift();
      const what = form.elements.filter.value || form.elements.contains.value ? "not searched" : "left out";
      const more = rate.selectedIndex + 1 < rate.length ? "; choose a higher number to see more" : "";
      const speed = looks.slice(1).reduce((sum, one) => sum + one[1], 0) / ((looks.at(-1)[0] - looks[0][0]) / 1000 || 1);
      status.textContent = left ? `${shown} followed, about ${left} ${what}: they came faster${more}` : `${shown} followed`;
      if (speed) status.textContent += `; about ${count(Math.round(speed))} come in a second`;
      cursor = full ? page.ends : page.reached;
    } catch (error) {
      status.textContent = `${error.message}; trying again`;
    }
    setTimeout(look, 1000);
  };
  tail.hidden = false;
  button.addEventListener("click", () => {
    following = !following;
    button.setAttribute("aria-pressed", String(following));
    button.textContent = following ? "Stop following" : "Follow live";
    if (following) { cursor = ""; look(); }
  });
})();
