// Behaviour of the jobs pages: links out of Airflow's frame, the buttons, the list's filter and order, live updates.
"use strict";
(() => {
  const REFRESH_MS = 4000;
  const CONFIRM_MS = 6000;
  const view = { text: "", state: "", column: -1, down: false };

  // Airflow's frame may not navigate the window around it, but a link inside that window may. The page around ours is
  // of the same origin, so the click is repeated there.
  function leaveFrame(event) {
    const link = event.target.closest("a[target=_top]");
    if (!link || window.top === window || event.button !== 0) return;
    event.preventDefault();
    const outer = window.top.document.createElement("a");
    outer.href = link.href;
    outer.rel = "noopener";
    outer.target = event.ctrlKey || event.metaKey || link.host !== location.host ? "_blank" : "_self";
    window.top.document.body.append(outer);
    outer.click();
    outer.remove();
  }

  function disarm(button) {
    delete button.dataset.armed;
    button.textContent = button.dataset.label;
  }

  function bodyOf(button) {
    if (button.dataset.reason) return JSON.stringify({ reason: document.getElementById(button.dataset.reason).value.trim() });
    return button.dataset.verb === "resume" ? "{}" : undefined;
  }

  async function act(button) {
    const told = document.getElementById("told");
    if (button.dataset.reason && document.getElementById(button.dataset.reason).value.trim() === "") {
      told.className = "FAILED";
      told.textContent = "Write a reason into the field beside the button first.";
      return;
    }
    if (button.dataset.confirm && !button.dataset.armed) {
      button.dataset.armed = "1";
      button.dataset.label = button.textContent;
      button.textContent = button.dataset.confirm;
      setTimeout(() => button.dataset.armed && disarm(button), CONFIRM_MS);
      return;
    }
    if (button.dataset.armed) disarm(button);
    button.disabled = true;
    told.className = "";
    told.textContent = "Asking …";
    try {
      const answer = await fetch(button.dataset.url, {
        method: "POST",
        headers: { "X-Updraft-Page": "1", "Content-Type": "application/json" },
        body: bodyOf(button),
      });
      const body = await answer.json().catch(() => ({}));
      told.className = answer.ok ? "note" : "FAILED";
      told.textContent = body.message || (body.error && body.error.message) || `Airflow answered ${answer.status}.`;
    } catch {
      told.className = "FAILED";
      told.textContent = "Airflow does not answer; nothing is known to have been asked.";
    }
    button.disabled = false;
    await refresh();
  }

  const value = (row, column) => row.cells[column].dataset.v ?? row.cells[column].textContent.trim();

  function compare(a, b) {
    const [x, y] = [value(a, view.column), value(b, view.column)];
    if (x === "" || y === "") return (x === "") - (y === "");
    const order = isNaN(x) || isNaN(y) ? x.localeCompare(y) : x - y;
    return view.down ? -order : order;
  }

  function arrange() {
    const body = document.querySelector(".jobs tbody");
    if (!body) return;
    const rows = [...body.rows];
    if (view.column >= 0) body.append(...rows.sort(compare));
    const words = view.text.toLowerCase().split(/\s+/).filter(Boolean);
    let shown = 0;
    for (const row of rows) {
      const text = row.textContent.toLowerCase();
      row.hidden = !words.every((word) => text.includes(word)) || (view.state !== "" && row.dataset.state !== view.state);
      shown += row.hidden ? 0 : 1;
    }
    document.getElementById("count").textContent = `${shown} of ${rows.length}`;
    document.querySelectorAll(".jobs th").forEach((th, i) => {
      th.setAttribute("aria-sort", i !== view.column ? "none" : view.down ? "descending" : "ascending");
    });
  }

  function sortBy(column) {
    view.down = view.column === column && !view.down;
    view.column = column;
    arrange();
  }

  // A person is typing into it.
  const busy = (part) => [...part.querySelectorAll("input[type=text]")].some((field) => field.value !== "");

  function swap(old, fresh) {
    if (old.dataset.html === undefined) old.dataset.html = first.get(old.dataset.part) ?? "";
    if (old.dataset.html === fresh.innerHTML || old.querySelector("[data-armed]") || busy(old)) return;
    const open = [...old.querySelectorAll("details")].map((item) => item.open);
    const log = old.querySelector("pre");
    const stays = log && log.scrollTop + log.clientHeight < log.scrollHeight - 20 ? log.scrollTop : null;
    old.innerHTML = fresh.innerHTML;
    old.dataset.html = fresh.innerHTML;
    old.querySelectorAll("details").forEach((item, i) => (item.open = open[i] ?? item.open));
    scrollLogs(old, stays);
  }

  function scrollLogs(within, place = null) {
    within.querySelectorAll("pre.log").forEach((log) => (log.scrollTop = place ?? log.scrollHeight));
  }

  async function refresh() {
    const answer = await fetch(location.pathname + location.search, { headers: { Accept: "text/html" } });
    if (!answer.ok || answer.redirected) return;
    const fresh = new DOMParser().parseFromString(await answer.text(), "text/html");
    for (const part of fresh.querySelectorAll("[data-part]")) {
      const old = document.querySelector(`[data-part="${part.dataset.part}"]`);
      if (old) swap(old, part);
    }
    document.body.dataset.live = fresh.body.dataset.live;
    arrange();
  }

  async function live() {
    if (document.body.dataset.live === "yes" && !document.hidden) await refresh().catch(() => {});
    setTimeout(live, REFRESH_MS);
  }

  const first = new Map([...document.querySelectorAll("[data-part]")].map((part) => [part.dataset.part, part.innerHTML]));
  document.addEventListener("click", (event) => {
    leaveFrame(event);
    const button = event.target.closest("button[data-verb]");
    if (button) act(button);
    const heading = event.target.closest(".jobs th button");
    if (heading) sortBy(heading.parentElement.cellIndex);
  });
  document.addEventListener("input", (event) => {
    if (event.target.id === "search") view.text = event.target.value;
    if (event.target.id === "state") view.state = event.target.value;
    arrange();
  });
  arrange();
  scrollLogs(document);
  setTimeout(live, REFRESH_MS);
})();
