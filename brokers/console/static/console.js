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

  // Follow live: the records behind the page's end, once a second, as many at a time as one chose. Those are left out
  // that come faster than that, and the page says how many offsets they are.
  const tail = document.querySelector("[data-tail]");
  const rows = document.querySelector("#messages tbody");
  if (tail === null || rows === null) return;
  const [button, rate, status] = ["button", "select", "span"].map((one) => tail.querySelector(one));
  const KEPT = 500;
  let following = false, cursor = "", shown = 0, left = 0;
  const cell = (row, label, text, numeric) => {
    const one = row.insertCell();
    one.textContent = text;
    if (label) one.dataset.label = label;
    if (numeric) one.className = "n";
    return one;
  };
  const bytes = (row, label, part) => {
    const shown = document.createElement(part.text === null ? "span" : "pre");
    shown.textContent = part.text === null ? "null" : part.text;
    if (part.text === null) shown.className = "none";
    const whole = cell(row, label, "");
    whole.append(shown);
    if (!part.problem) return;
    const problem = document.createElement("span");
    [problem.className, problem.textContent] = ["small warning", part.problem];
    whole.append(problem);
  };
  const add = (message) => {
    const row = rows.insertRow(0);
    if (message.marker || message.state === "aborted" || message.state === "undecided") row.className = "unseen";
    cell(row, "Partition", message.partition, true);
    cell(row, "Offset", message.offset, true);
    cell(row, "Time", new Date(message.timestamp).toISOString().replace("Z", "+00:00"));
    if (message.marker || message.meaning) {
      cell(row, "", message.marker || message.meaning).colSpan = 2;
    } else {
      bytes(row, "Key", message.key);
      bytes(row, "Value", message.value);
    }
    const headers = message.headers.map((one) => `${one.name} ${one.text === null ? "null" : one.text}`);
    if (headers.length) cell(row, "Headers", headers.join(", "));
    else cell(row, "", "").className = "empty";
    if (message.state) cell(row, "Transaction", message.state);
    else cell(row, "", "\u2013").className = "empty";
    const last = row.insertCell();
    if (!message.marker && (message.state === "" || message.state === "committed")) {
      const link = document.createElement("a");
      link.href = `${tail.dataset.tail.replace(/messages$/, "copy")}?partition=${message.partition}&offset=${message.offset}`;
      link.textContent = "Copy\u2026";
      last.append(link);
    }
    while (rows.rows.length > KEPT) rows.deleteRow(-1);
  };
  const look = async () => {
    if (!following) return;
    const form = new URLSearchParams(new FormData(document.querySelector("main form.search")));
    for (const [name, value] of Object.entries({ from: "end", count: rate.value, cursor, format: "json" })) form.set(name, value);
    try {
      const headers = { Accept: "application/json", "Fleetlog-Automatic": "true" };
      const page = await (await fetch(`${tail.dataset.tail}?${form}`, { headers })).json();
      if (page.error) throw new Error(page.error);
      if (page.messages.length) rows.querySelectorAll("td.none").forEach((one) => one.closest("tr").remove());
      page.messages.forEach(add);
      shown += page.messages.length;
      const full = page.cut_short || page.messages.length >= Number(form.get("count"));
      if (full) left += page.behind;
      const what = form.get("contains") ? "not searched" : "left out";
      const more = rate.selectedIndex + 1 < rate.length ? "; choose a higher number to see more" : "";
      status.textContent = left ? `${shown} followed, about ${left} ${what}: they came faster${more}` : `${shown} followed`;
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
