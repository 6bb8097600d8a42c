// Replaces the sections of a page when they change, follows sort and search without a reload, copies commands, and draws
// time series. Every page works without this file, by reloading.
"use strict";

const live = document.getElementById("live");
const say = (text) => { live.textContent = text; };
let source = null;
let leaving = false;

// Replaces the content of a section, and keeps what the viewer opened, typed and focused.
function swap(section, html, version) {
  if (section.dataset.v === version) return;
  const open = [...section.querySelectorAll("details[open]")].map((part) => part.id || part.textContent.slice(0, 80));
  const active = document.activeElement;
  const inside = section.contains(active);
  const isTyped = [...section.querySelectorAll("input")].some((input) => input.value !== input.defaultValue);
  if (isTyped || (inside && active.matches("input, select"))) return;
  const links = [...section.querySelectorAll("a, button, summary")];
  const place = inside ? links.indexOf(active) : -1;
  const top = section.scrollTop;
  section.innerHTML = html;
  section.dataset.v = version;
  section.scrollTop = top;
  for (const part of section.querySelectorAll("details")) {
    if (open.includes(part.id || part.textContent.slice(0, 80))) part.open = true;
  }
  if (place >= 0) section.querySelectorAll("a, button, summary")[place]?.focus();
  enhance(section);
}

// One stream of changed fragments; the browser reconnects by itself.
function listen() {
  source?.close();
  source = new EventSource("/events?page=" + encodeURIComponent(location.pathname + location.search));
  source.onopen = () => say("live");
  source.addEventListener("fragment", (event) => {
    const part = JSON.parse(event.data);
    const section = document.getElementById(part.id);
    if (section) swap(section, part.html, part.v);
    say("live");
  });
  source.addEventListener("unavailable", (event) => say(JSON.parse(event.data).text));
  source.onerror = () => {
    if (leaving) return;
    say(source.readyState === EventSource.CLOSED ? "not live; trying again" : "reconnecting");
    if (source.readyState === EventSource.CLOSED) setTimeout(listen, 30000);
  };
}

// Follows a link or form within the page; the last one wins.
let visits = 0;
async function visit(address, push) {
  const number = ++visits;
  const response = await fetch(address, { headers: { accept: "text/html" } });
  const text = await response.text();
  if (number !== visits) return;
  if (!response.ok) { location.href = address; return; }
  const next = new DOMParser().parseFromString(text, "text/html");
  for (const part of next.querySelectorAll("main > section")) {
    const section = document.getElementById(part.id);
    if (section) swap(section, part.innerHTML, part.dataset.v);
  }
  if (push) history.pushState(null, "", address);
  else history.replaceState(null, "", address);
  listen();
}

function addressOf(form) {
  const pairs = [...new FormData(form)].filter(([, value]) => value !== "");
  const query = new URLSearchParams(pairs).toString();
  return form.getAttribute("action") + (query ? "?" + query : "");
}

document.addEventListener("click", async (event) => {
  const button = event.target.closest("[data-copy]");
  if (button) {
    try {
      await navigator.clipboard.writeText(button.dataset.copy);
      button.textContent = "Copied";
    } catch {
      getSelection().selectAllChildren(button.parentElement.querySelector("code"));
      button.textContent = "Press Ctrl+C";
    }
    setTimeout(() => { button.textContent = "Copy"; }, 2000);
    return;
  }
  const link = event.target.closest("a[data-soft]");
  if (link && event.button === 0 && !event.ctrlKey && !event.metaKey && !event.shiftKey) {
    event.preventDefault();
    visit(link.getAttribute("href"), true);
  }
});

document.addEventListener("submit", (event) => {
  if (!event.target.matches("form[data-soft]")) return;
  event.preventDefault();
  visit(addressOf(event.target), true);
});

let typing = 0;
document.addEventListener("input", (event) => {
  const form = event.target.closest("form[role=search]");
  if (!form) return;
  clearTimeout(typing);
  typing = setTimeout(() => visit(addressOf(form), false), 200);
});

document.addEventListener("keydown", (event) => {
  if (event.key === "/" && !event.target.matches("input, select")) {
    const search = document.getElementById("q");
    if (search) { event.preventDefault(); search.focus(); search.select(); }
  }
});

addEventListener("popstate", () => location.reload());
addEventListener("pagehide", () => { leaving = true; source?.close(); });
addEventListener("pageshow", (event) => { if (event.persisted) { leaving = false; listen(); } });

// Loads the plot library on the pages that need it.
let library = null;
function plotLibrary() {
  library ??= new Promise((done, failed) => {
    const style = document.createElement("link");
    style.rel = "stylesheet";
    style.href = document.body.dataset.plotCss;
    const script = document.createElement("script");
    script.src = document.body.dataset.plot;
    script.onload = done;
    script.onerror = failed;
    document.head.append(style, script);
  });
  return library;
}

const units = ["B/s", "kB/s", "MB/s", "GB/s"];
function rate(value) {
  if (value == null) return "-";
  const at = Math.min(units.length - 1, Math.max(0, Math.floor(Math.log10(Math.max(1, value)) / 3)));
  return (value / 1000 ** at).toFixed(at && value / 1000 ** at < 10 ? 1 : 0) + " " + units[at];
}

const clock = (seconds) => new Date(seconds * 1000).toTimeString().slice(0, 5);

async function draw(figure) {
  const drawn = JSON.parse(figure.dataset.series);
  try { await plotLibrary(); } catch { return; }
  const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  const axis = { stroke: colour("--faint"), grid: { stroke: colour("--line"), width: 1 }, ticks: { stroke: colour("--line") } };
  const strokes = [[colour("--mark"), []], ["#d55e00", [6, 3]]];
  const series = drawn.series.map((one, at) => ({
    label: one.label, stroke: strokes[at % 2][0], dash: strokes[at % 2][1], width: 1.5, value: (_, value) => rate(value),
  }));
  const width = () => Math.max(200, figure.clientWidth);
  figure.querySelector("svg, .uplot")?.remove();
  const plot = new uPlot({
    width: width(), height: 240, series: [{ value: (_, at) => (at == null ? "-" : clock(at)) }, ...series], scales: { y: { range: (_, __, high) => [0, high * 1.05 || 1] } },
    axes: [{ ...axis, incrs: [60, 300, 900, 1800, 3600, 7200, 14400], values: (_, times) => times.map(clock) }, { ...axis, size: 72, values: (_, values) => values.map(rate) }],
  }, [drawn.x, ...drawn.series.map((one) => one.values)]);
  figure.prepend(plot.root);
  new ResizeObserver(() => plot.setSize({ width: width(), height: 240 })).observe(figure);
}

// What only the script can do.
function enhance(root) {
  for (const button of root.querySelectorAll("button[data-copy]")) button.hidden = false;
  for (const figure of root.querySelectorAll(".plot[data-series]")) draw(figure);
}

matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => enhance(document));
enhance(document);
if (document.querySelector("main > section[data-v]")) listen();
