// Streams, the selection of jobs, and logs. Content of the cluster is only ever set as text.
"use strict";

(() => {
  const REFRESH_INTERVAL = 1000;
  const RECONNECT_DELAY = 2000;

  // -- changes: the content of the element with data-live is read again, at most once a second

  let source = null;
  let liveUrl = "";
  let refreshTimer = null;
  let lastRefresh = 0;
  // How many changes were reported, and how many had been when a request was sent.
  let changes = 0;
  const changesBefore = new WeakMap();

  function show(text) {
    const state = document.getElementById("live-state");
    if (state && state.textContent !== text) state.textContent = text;
  }

  function refresh() {
    changes += 1;
    if (refreshTimer !== null) return;
    const wait = Math.max(0, lastRefresh + REFRESH_INTERVAL - Date.now());
    refreshTimer = setTimeout(() => {
      refreshTimer = null;
      lastRefresh = Date.now();
      const element = document.querySelector("[data-live]");
      if (element) htmx.trigger(element, "refresh");
    }, wait);
  }

  function connect() {
    const element = document.querySelector("[data-live]");
    // Browsers open few connections to one server: a tab in the background has none.
    const url = element && !document.hidden ? element.dataset.live : "";
    if (url === liveUrl) return;
    if (source) source.close();
    source = null;
    liveUrl = url;
    show("");
    if (url) open(url);
  }

  function open(url) {
    let failed = false;
    const events = new EventSource(url);
    source = events;
    events.addEventListener("synced", () => {
      show("live");
      // What has happened before this moment may be missing in the page.
      refresh();
      failed = false;
    });
    events.addEventListener("change", refresh);
    events.onerror = () => {
      if (source !== events) return;
      if (!failed) show("reconnecting");
      failed = true;
      if (events.readyState !== EventSource.CLOSED) return;
      // Rejected: the position is too old, or the session has ended, which the refresh finds out.
      refresh();
      setTimeout(() => {
        if (source === events) open(url);
      }, RECONNECT_DELAY);
    };
  }

  document.addEventListener("htmx:beforeSend", (event) => {
    changesBefore.set(event.detail.xhr, changes);
  });

  // The content may be older than a change whose refresh htmx has dropped: it belonged to the
  // element that this response has replaced.
  document.addEventListener("htmx:afterSwap", (event) => {
    const { elt, xhr } = event.detail;
    if (elt.matches("[data-live]") && changesBefore.get(xhr) !== changes) refresh();
  });

  document.addEventListener("htmx:afterRequest", (event) => {
    const { elt, xhr } = event.detail;
    const failed = xhr.status === 0 || xhr.status === 429 || xhr.status >= 500;
    if (failed && elt.matches("[data-live]")) setTimeout(refresh, RECONNECT_DELAY);
  });

  // The list was read again while the request for another filter was sent: htmx would change the
  // list that is not on the page any more.
  document.addEventListener("htmx:beforeOnLoad", (event) => {
    const { elt, target } = event.detail;
    if (elt.matches("form.filters") && !target.isConnected) htmx.trigger(elt, "submit");
  });

  // -- selection of jobs, which outlives a refresh

  const selected = new Set();

  function boxes() {
    return [...document.querySelectorAll("#selection input[name=job]")];
  }

  function updateCount() {
    const all = document.getElementById("select-all");
    const shown = boxes();
    const number = shown.filter((box) => box.checked).length;
    if (all) {
      all.checked = number > 0 && number === shown.length;
      all.indeterminate = number > 0 && number < shown.length;
    }
    for (const button of document.querySelectorAll("[data-bulk]")) button.disabled = number === 0;
  }

  function restoreSelection() {
    if (!document.getElementById("selection")) return; // the list could not be read
    const shown = boxes();
    const names = new Set(shown.map((box) => box.value));
    for (const name of selected) if (!names.has(name)) selected.delete(name);
    for (const box of shown) box.checked = selected.has(box.value);
    updateCount();
  }

  document.addEventListener("change", (event) => {
    const box = event.target;
    if (box.id === "select-all") {
      for (const each of boxes()) {
        each.checked = box.checked;
        if (box.checked) selected.add(each.value);
        else selected.delete(each.value);
      }
      updateCount();
    } else if (box.name === "job") {
      if (box.checked) selected.add(box.value);
      else selected.delete(box.value);
      updateCount();
    }
  });

  document.addEventListener("htmx:confirm", (event) => {
    const button = event.detail.elt;
    if (!button.matches("[data-bulk]")) return;
    event.preventDefault();
    const number = boxes().filter((box) => box.checked).length;
    const what = number === 1 ? "1 job" : `${number} jobs`;
    if (window.confirm(`${event.detail.question} ${what}?`)) event.detail.issueRequest(true);
  });

  // -- logs: the last lines in memory, those that match the search in the page

  const MAX_LINES = 5000;
  let lines = [];
  let reading = null;
  let drawing = false;

  function logState(text) {
    document.getElementById("log-state").textContent = text;
  }

  function drawLog() {
    if (drawing) return;
    drawing = true;
    requestAnimationFrame(() => {
      drawing = false;
      const log = document.getElementById("log");
      const wanted = document.getElementById("log-form").elements.search.value.toLowerCase();
      const atEnd = log.scrollTop + log.clientHeight >= log.scrollHeight - 5;
      const shown = wanted ? lines.filter((line) => line.toLowerCase().includes(wanted)) : lines;
      log.textContent = shown.join("\n");
      if (atEnd) log.scrollTop = log.scrollHeight;
    });
  }

  async function readLog() {
    const form = document.getElementById("log-form");
    const fields = form.elements;
    if (reading) reading.abort();
    const current = new AbortController();
    reading = current;
    lines = [];
    drawLog();
    const query = new URLSearchParams({ pod: fields.pod.value, follow: fields.follow.checked });
    try {
      logState(fields.follow.checked ? "following" : "reading");
      const response = await fetch(`${form.dataset.url}?${query}`, {
        signal: current.signal,
        headers: { Accept: "text/plain" },
      });
      if (!response.ok) {
        const problem = await response.json().catch(() => ({ detail: response.statusText }));
        if (reading === current) logState(problem.detail);
        return;
      }
      await readLines(response, current);
      if (reading === current) logState("complete");
    } catch {
      if (reading !== current) return;
      logState("interrupted");
      if (fields.follow.checked) {
        setTimeout(() => {
          if (reading === current) readLog();
        }, RECONNECT_DELAY);
      }
    }
  }

  async function readLines(response, current) {
    const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
    let rest = "";
    for (;;) {
      const { value, done } = await reader.read();
      if (reading !== current) return;
      const pieces = (rest + (done ? "" : value)).split("\n");
      rest = done ? "" : pieces.pop();
      lines = lines.concat(done && pieces[pieces.length - 1] === "" ? pieces.slice(0, -1) : pieces);
      if (lines.length > MAX_LINES) lines = lines.slice(-MAX_LINES);
      drawLog();
      if (done) return;
    }
  }

  document.addEventListener("submit", (event) => {
    if (event.target.id !== "log-form") return;
    event.preventDefault();
    readLog();
  });
  document.addEventListener("input", (event) => {
    if (event.target.matches("#log-form input[name=search]")) drawLog();
  });
  document.addEventListener("change", (event) => {
    if (event.target.matches("#log-form input:not([type=search])")) readLog();
  });

  // -- details that are open stay open over a refresh, and the focus stays where it is

  let opened = [];
  let focused = "";

  // htmx keeps the focus of elements with an id alone.
  function selector(element) {
    const names = ["id", "name", "value", "href", "hx-post", "aria-label"];
    const given = names.filter((name) => element.hasAttribute(name));
    const values = given.map((name) => `[${name}=${JSON.stringify(element.getAttribute(name))}]`);
    return element.localName + values.join("");
  }

  document.addEventListener("htmx:beforeSwap", (event) => {
    const { requestConfig, target } = event.detail;
    // What is replaced between press and release of a key or a mouse button gets no click.
    if (requestConfig.elt === target && target.querySelector(":active")) {
      event.detail.shouldSwap = false;
      refresh();
      return;
    }
    opened = [...document.querySelectorAll("details[id][open]")].map((each) => each.id);
    const element = document.activeElement;
    focused = target.contains(element) ? selector(element) : "";
  });

  function restoreFocus() {
    const wanted = focused;
    focused = "";
    if (!wanted || document.activeElement !== document.body) return;
    const element = document.querySelector(wanted) || document.getElementById("main");
    element.focus({ preventScroll: true });
  }

  function prepare() {
    for (const id of opened) {
      const details = document.getElementById(id);
      if (details) details.open = true;
    }
    opened = [];
    connect();
    restoreSelection();
    restoreFocus();
  }

  document.addEventListener("visibilitychange", connect);
  // Not when the swap has settled: keys that are pressed until then would find no focus.
  document.addEventListener("htmx:afterSwap", prepare);
  document.addEventListener("DOMContentLoaded", prepare);
  if (document.readyState !== "loading") prepare();
})();
