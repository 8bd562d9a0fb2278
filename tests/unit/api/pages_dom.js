// Runs api/pages/static/pages.js in a small DOM, one scenario per call: `node pages_dom.js PAGES_JS SCENARIO`.
// Prints nothing and leaves with 0 when it holds. Called by test_pages_script.py.
"use strict";
const assert = require("node:assert/strict");
const fs = require("node:fs");
const vm = require("node:vm");

// --- a DOM, as far as the script needs one ---

class Element {
  constructor(tag, attributes = {}) {
    this.tagName = tag.toUpperCase();
    this.attributes = { ...attributes };
    this.children = [];
    this.parentElement = null;
    this.scrollTop = 0;
    this.scrollHeight = 500;
    this.clientHeight = 100;
    this.hidden = false;
    this.disabled = false;
    this.clicks = 0;
    this.dataset = new Proxy(this.attributes, {
      get: (all, name) => all[dashed(name)],
      set: (all, name, value) => ((all[dashed(name)] = String(value)), true),
      deleteProperty: (all, name) => delete all[dashed(name)],
    });
    for (const name of ["open"]) this[name] = name in attributes;
  }
  get id() { return this.attributes.id ?? ""; }
  get className() { return this.attributes.class ?? ""; }
  set className(value) { this.attributes.class = value; }
  get host() { return new URL(this.href).host; }
  get href() { return new URL(this.attributes.href, PAGE).href; }
  set href(value) { this.attributes.href = value; }
  get rows() { return this.children.filter((c) => c.tagName === "TR"); }
  get cells() { return this.children.filter((c) => ["TD", "TH"].includes(c.tagName)); }
  get cellIndex() { return this.parentElement.cells.indexOf(this); }
  get textContent() { return this.children.map((c) => (typeof c === "string" ? c : c.textContent)).join(""); }
  set textContent(text) { this.children = [String(text)]; }
  get innerHTML() { return this.source ?? ""; }
  set innerHTML(text) { this.source = text; this.children = []; fill(this, text); }
  setAttribute(name, value) { this.attributes[name] = String(value); }
  append(...more) {
    for (const child of more) {
      if (typeof child !== "string") {
        child.remove();
        child.parentElement = this;
      }
      this.children.push(child);
    }
  }
  remove() {
    if (this.parentElement) this.parentElement.children = this.parentElement.children.filter((c) => c !== this);
    this.parentElement = null;
  }
  click() { this.clicks += 1; clicked.push({ href: this.attributes.href, target: this.target, rel: this.rel }); }
  closest(selector) {
    for (let item = this; item; item = item.parentElement) if (fits(item, selector)) return item;
    return null;
  }
  querySelectorAll(selector) {
    const below = (item) => item.children.flatMap((c) => (typeof c === "string" ? [] : [c, ...below(c)]));
    return below(this).filter((item) => fits(item, selector));
  }
  querySelector(selector) { return this.querySelectorAll(selector)[0] ?? null; }
  getElementById(id) { return this.querySelector(`[id=${id}]`); }
}

const dashed = (name) => "data-" + name.replace(/[A-Z]/g, (c) => "-" + c.toLowerCase());

function fits(item, selector) {
  const words = selector.trim().split(/\s+/);
  if (!fitsOne(item, words.pop())) return false;
  if (!words.length) return true;
  for (let up = item.parentElement; up; up = up.parentElement) if (fits(up, words.join(" "))) return true;
  return false;
}

function fitsOne(item, word) {
  const [, tag, rest] = /^([a-z0-9]*)(.*)$/i.exec(word);
  if (tag && item.tagName !== tag.toUpperCase()) return false;
  return (rest.match(/\.[\w-]+|\[[^\]]+\]/g) ?? []).every((part) => {
    if (part[0] === ".") return (item.attributes.class ?? "").split(" ").includes(part.slice(1));
    const [, name, , value] = /^\[([\w-]+)(="?([^"\]]*)"?)?\]$/.exec(part);
    return name in item.attributes && (value === undefined || item.attributes[name] === value);
  });
}

function fill(parent, text) {
  const open = [{ item: parent, from: 0 }];
  let last = 0;
  for (const found of text.matchAll(/<(\/?)([a-z0-9]+)((?:\s+[\w-]+(?:="[^"]*")?)*)\s*>/g)) {
    if (found.index > last) open.at(-1).item.append(text.slice(last, found.index));
    last = found.index + found[0].length;
    if (found[1]) {
      const { item, from } = open.pop();
      item.source = text.slice(from, found.index);
    } else {
      const pairs = [...found[3].matchAll(/([\w-]+)(?:="([^"]*)")?/g)].map(([, name, value]) => [name, value ?? ""]);
      const item = new Element(found[2], Object.fromEntries(pairs));
      open.at(-1).item.append(item);
      if (!["br", "input", "option"].includes(found[2])) open.push({ item, from: last });
    }
  }
  if (last < text.length) open.at(-1).item.append(text.slice(last));
}

const parse = (text) => {
  const page = new Element("html");
  fill(page, text);
  page.body = page.querySelector("body");
  return page;
};

// --- a page with the script ---

const PAGE = "http://airflow:8080/updraft/jobs/digits-1";
const clicked = [];

function load(body, { framed = false, answers = [] } = {}) {
  const listeners = {}, timers = [], asked = [];
  const document = parse(body);
  document.addEventListener = (kind, act) => (listeners[kind] = act);
  const window = {};
  const outer = framed ? { document: parse("<body></body>") } : null;
  if (outer) outer.document.createElement = (tag) => new Element(tag);
  window.top = outer ?? window;
  const fetch = async (url, options = {}) => {
    asked.push({ url, ...options });
    const answer = (options.method === "POST" ? null : answers.shift()) ?? { text: "<body></body>" };
    return { ok: answer.ok ?? true, status: 200, redirected: false, json: async () => ({ message: "Asked." }),
      text: async () => answer.text };
  };
  const context = { document, window, location: new URL(PAGE), fetch, console, isNaN,
    DOMParser: class { parseFromString(text) { return parse(text); } },
    setTimeout: (act, ms) => timers.push({ act, ms }) };
  vm.runInNewContext(fs.readFileSync(process.argv[2], "utf8"), context);
  const click = async (target, more = {}) => {
    const event = { target, button: 0, prevented: false, preventDefault() { this.prevented = true; }, ...more };
    listeners.click(event);
    await new Promise(setImmediate);
    await new Promise(setImmediate);
    return event;
  };
  const type = (target, value) => { target.value = value; listeners.input({ target }); };
  const tick = async (ms) => { for (const t of timers.splice(0).filter((t) => t.ms === ms)) await t.act(); };
  return { document, outer, asked, timers, click, type, tick };
}

const BUTTONS = '<output id="told"></output><button data-verb="halt" data-url="/updraft/api/v1/jobs/digits-1/halt">Halt'
  + '</button><button data-verb="cancel" data-url="/updraft/api/v1/jobs/digits-1/cancel" data-confirm="Sure?">Cancel'
  + "</button>";

const scenarios = {
  async link_leaves_the_frame() {
    const links = '<a href="/dags/x" target="_top"><b>run</b></a><a href="http://mlflow:5000/#/y" target="_top">m</a>'
      + '<a href="/updraft/jobs">all</a>';
    const page = load(`<body data-live="no">${links}</body>`, { framed: true });
    const [airflow, mlflow, inside] = page.document.querySelectorAll("a");
    assert.equal((await page.click(airflow.querySelector("b"))).prevented, true);
    assert.deepEqual(clicked.pop(), { href: "http://airflow:8080/dags/x", target: "_self", rel: "noopener" });
    await page.click(mlflow); // another server: Airflow stays where it is
    assert.deepEqual(clicked.pop(), { href: "http://mlflow:5000/#/y", target: "_blank", rel: "noopener" });
    await page.click(airflow, { ctrlKey: true });
    assert.equal(clicked.pop().target, "_blank");
    assert.equal((await page.click(inside)).prevented, false);
    assert.equal(clicked.length, 0);
    assert.equal(page.outer.document.body.children.length, 0);
  },

  async link_without_a_frame_is_the_browsers() {
    const page = load('<body data-live="no"><a href="/dags/x" target="_top">run</a></body>');
    assert.equal((await page.click(page.document.querySelector("a"))).prevented, false);
    assert.equal(clicked.length, 0);
  },

  async button_posts_with_the_pages_header() {
    const page = load(`<body data-live="no">${BUTTONS}</body>`);
    await page.click(page.document.querySelector("button"));
    const { url, method, headers } = page.asked[0];
    assert.deepEqual([url, method, headers["X-Updraft-Page"]], ["/updraft/api/v1/jobs/digits-1/halt", "POST", "1"]);
    assert.equal(page.document.getElementById("told").textContent, "Asked.");
    assert.equal(page.asked[1].method, undefined); // the page is asked for anew
  },

  async cancel_needs_two_clicks() {
    const page = load(`<body data-live="no">${BUTTONS}</body>`);
    const button = page.document.querySelectorAll("button")[1];
    await page.click(button);
    assert.deepEqual([page.asked.length, button.textContent], [0, "Sure?"]);
    await page.tick(6000); // nobody clicked again in time
    assert.equal(button.textContent, "Cancel");
    await page.click(button);
    assert.equal(page.asked.length, 0);
    await page.click(button);
    assert.deepEqual([page.asked[0].url, page.asked[0].method], ["/updraft/api/v1/jobs/digits-1/cancel", "POST"]);
    assert.equal(button.textContent, "Cancel");
  },

  async logs_begin_at_their_end() {
    const page = load('<body data-live="no"><div data-part="log"><pre class="log">x</pre></div><pre>m</pre></body>');
    const [log, other] = page.document.querySelectorAll("pre");
    assert.deepEqual([log.scrollTop, other.scrollTop], [500, 0]);
  },

  async refresh_keeps_what_is_open_and_where_one_reads() {
    const body = (n, live) => `<body data-live="${live}"><div data-part="metrics"><details><summary>s</summary>${n}`
      + `</details><details>t</details></div><div data-part="log"><pre class="log">line ${n}</pre></div></body>`;
    const page = load(body(1, "yes"), { answers: [{ text: body(2, "yes") }, { text: body(3, "no") }] });
    page.document.querySelectorAll("details")[0].open = true;
    page.document.querySelector("pre").scrollTop = 40; // reads further up
    await page.tick(4000);
    const [first, second] = page.document.querySelectorAll("details");
    assert.deepEqual([first.open, second.open], [true, false]);
    assert.match(first.textContent, /2/);
    assert.deepEqual([page.document.querySelector("pre").textContent, page.document.querySelector("pre").scrollTop],
      ["line 2", 40]);
    page.document.querySelector("pre").scrollTop = 395; // at the end: goes on with it
    await page.tick(4000);
    assert.deepEqual([page.document.querySelector("pre").textContent, page.document.querySelector("pre").scrollTop],
      ["line 3", 500]);
    await page.tick(4000);
    assert.equal(page.asked.length, 2); // the job has ended
  },

  async refresh_leaves_a_button_that_waits_for_its_second_click() {
    const body = (n) => `<body data-live="yes"><div data-part="actions">${BUTTONS}${n}</div></body>`;
    const page = load(body(1), { answers: [{ text: body(2) }] });
    const button = page.document.querySelectorAll("button")[1];
    await page.click(button);
    await page.tick(4000);
    assert.equal(page.document.querySelectorAll("button")[1], button);
    assert.equal(button.textContent, "Sure?");
  },

  async list_is_searched_and_sorted() {
    const row = (name, state, v) => `<tr data-state="${state}"><td>${name}</td><td data-v="${v}">x</td></tr>`;
    const page = load('<body data-live="no"><input id="search"><span id="count"></span><table class="jobs"><thead><tr>'
      + "<th><button>Job</button></th><th><button>Metric</button></th></tr></thead><tbody>"
      + `${row("b ada", "FAILED", "10")}${row("a eve", "COMPLETED", "9")}${row("c eve", "COMPLETED", "")}`
      + '</tbody></table><select id="state"></select></body>');
    const names = () => page.document.querySelector("tbody").rows.filter((r) => !r.hidden).map((r) => r.textContent[0]);
    await page.click(page.document.querySelectorAll("th button")[1]);
    assert.deepEqual(names(), ["a", "b", "c"]); // by number, those without at the end
    await page.click(page.document.querySelectorAll("th button")[0]);
    await page.click(page.document.querySelectorAll("th button")[0]);
    assert.deepEqual(names(), ["c", "b", "a"]);
    page.type(page.document.getElementById("search"), "EVE c");
    assert.deepEqual([names(), page.document.getElementById("count").textContent], [["c"], "1 of 3"]);
    page.type(page.document.getElementById("search"), "");
    page.type(page.document.getElementById("state"), "FAILED");
    assert.deepEqual(names(), ["b"]);
  },
};

if (process.argv[3] === "names") console.log(Object.keys(scenarios).join("\n"));
else scenarios[process.argv[3]]();
