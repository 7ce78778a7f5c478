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

  function show(text) {
    const state = document.getElementById("live-state");
    if (state && state.textContent !== text) state.textContent = text;
  }

  function refresh() {
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
    const url = element ? element.dataset.live : "";
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

  function prepare() {
    connect();
    restoreSelection();
  }

  document.addEventListener("htmx:afterSettle", prepare);
  document.addEventListener("DOMContentLoaded", prepare);
  if (document.readyState !== "loading") prepare();
})();
