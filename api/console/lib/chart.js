// A picture of figures over time: bars, stacked by series, beside a table that says the same.

import { el, replace, svg, update } from "./dom.js";
import { table } from "./view.js";

const WIDE = 720;
const NARROW = 340; // its texts have the usual size, also on a telephone
const HEIGHT = 220;
const LEFT = 64;
const BOTTOM = 24;
const TOP = 8;
const COLOURS = 6; // as many as the styles have; the rest are one

// chart({title, amount, labels}) makes one: {node, draw}. The node stays as it is while figures change, with the
// table that its reader has opened. draw({summary, points, series}) shows other figures:
//   points   in the order of time: {at, label, parts: {series id: number} | null, isOpen}; without `parts` nothing is
//            known of it, which is drawn as a gap; `isOpen` is what may still grow, and hatched
//   series   [{id, label}], the first at the bottom
//   amount   writes a figure; labels: {when, total, unknown, open, asTable}
export function chart({ title, amount, labels }) {
  const place = el("div");
  const asTable = twin({ title, amount, labels });
  const cursor = { at: null }; // of the point under the reader's cursor, while figures change
  const draw = (figures) => {
    replace(place, picture({ title, amount, labels, cursor, ...figures }));
    asTable.draw(figures);
  };
  return { node: el("figure", { class: "chart-figure" }, place, asTable.node), draw };
}

function picture({ title, summary, points, series, amount, labels, cursor: looked }) {
  const wide = matchMedia("(max-width: 40rem)").matches ? NARROW : WIDE;
  const most = ceiling(Math.max(0, ...points.map(total)));
  const told = el("p", { class: "chart-told", "aria-hidden": "true" }, summary);
  const cursor = svg("line", { class: "chart-cursor", y1: TOP, y2: HEIGHT - BOTTOM, visibility: "hidden" });
  const drawing = svg(
    "svg",
    { class: "chart", viewBox: `0 0 ${wide} ${HEIGHT}`, role: "img", "aria-label": `${title}. ${summary}`, on: { pointermove: pointed, pointerleave: left } },
    hatching(),
    scale(most, amount, wide),
    bars(points, series, most, wide),
    days(points, wide),
    cursor,
  );
  const step = (wide - LEFT) / Math.max(1, points.length);

  function pointed(event) {
    const box = drawing.getBoundingClientRect();
    show(Math.floor((((event.clientX - box.left) / box.width) * wide - LEFT) / step));
  }
  function show(at) {
    if (!points[at]) return left();
    looked.at = points[at].at;
    const middle = LEFT + (at + 0.5) * step;
    cursor.setAttribute("x1", middle);
    cursor.setAttribute("x2", middle);
    cursor.setAttribute("visibility", "visible");
    replace(told, spoken(points[at], series, amount, labels));
  }
  function left() {
    looked.at = null;
    cursor.setAttribute("visibility", "hidden");
    replace(told, summary);
  }
  if (looked.at !== null) show(points.findIndex((point) => point.at === looked.at));
  const legend = series.length > 1 ? el("ul", { class: "chart-legend" }, series.map((each, index) => el("li", { class: colour(index) }, el("span", null, each.label)))) : null;
  return [drawing, told, legend];
}

const total = (point) => Object.values(point.parts ?? {}).reduce((sum, each) => sum + each, 0);
const colour = (index) => `series-${Math.min(index, COLOURS - 1)}`;

function spoken(point, series, amount, labels) {
  if (!point.parts) return `${point.label}: ${labels.unknown}`;
  const parts = series.filter((each) => point.parts[each.id]).map((each) => `${each.label} ${amount(point.parts[each.id])}`);
  const all = `${point.label}: ${amount(total(point))}${point.isOpen ? ` (${labels.open})` : ""}`;
  return series.length > 1 && parts.length ? `${all} — ${parts.join(", ")}` : all;
}

// The least of 1, 2 or 5 times a power of ten that is not below.
function ceiling(most) {
  if (most <= 0) return 1_000;
  const power = 10 ** Math.floor(Math.log10(most));
  return [1, 2, 5, 10].map((each) => each * power).find((each) => each >= most);
}

function hatching() {
  const line = svg("path", { d: "M0 6 6 0", class: "chart-hatch" });
  return svg("defs", null, svg("pattern", { id: "open-hours", width: 6, height: 6, patternUnits: "userSpaceOnUse" }, line));
}

function scale(most, amount, wide) {
  return [0, 0.5, 1].map((share) => {
    const y = HEIGHT - BOTTOM - share * (HEIGHT - BOTTOM - TOP);
    return [svg("line", { class: "chart-grid", x1: LEFT, x2: wide, y1: y, y2: y }), svg("text", { x: LEFT - 6, y: y + 4, "text-anchor": "end" }, amount(share * most))];
  });
}

function bars(points, series, most, wide) {
  const step = (wide - LEFT) / Math.max(1, points.length);
  const high = HEIGHT - BOTTOM - TOP;
  return points.map((point, at) => {
    if (!point.parts) return null;
    const x = LEFT + at * step + step * 0.1;
    let y = HEIGHT - BOTTOM;
    const boxes = series.map((each, index) => {
      const height = ((point.parts[each.id] ?? 0) / most) * high;
      y -= height;
      return height > 0 ? svg("rect", { class: colour(index), x, y, width: step * 0.8, height }) : null;
    });
    const open = point.isOpen ? svg("rect", { fill: "url(#open-hours)", x, y, width: step * 0.8, height: HEIGHT - BOTTOM - y }) : null;
    return [boxes, open];
  });
}

// When it begins, is half over, and ends; the second below its own point.
function days(points, wide) {
  if (!points.length) return null;
  const half = Math.floor((points.length - 1) / 2);
  const places = [
    [0, LEFT, "start"],
    [half, LEFT + ((half + 0.5) * (wide - LEFT)) / points.length, "middle"],
    [points.length - 1, wide, "end"],
  ];
  return places.slice(points.length > 2 ? 0 : 2).map(([at, x, anchor]) => svg("text", { x, y: HEIGHT - 6, "text-anchor": anchor }, points[at].label));
}

// The same figures as a table, made while it is open: it has one row for each hour.
function twin({ title, amount, labels }) {
  const place = el("div");
  const node = el("details", { class: "chart-table", on: { toggle: show } }, el("summary", null, labels.asTable), place);
  let figures = { points: [], series: [] };
  function draw(next) {
    figures = next;
    show();
  }
  function show() {
    if (!node.open) return;
    const { points, series } = figures;
    const each = series.length > 1 ? series.map(({ id, label }) => ({ key: id, label, number: true, cell: (row) => (row.parts ? amount(row.parts[id] ?? 0) : null) })) : [];
    const columns = [
      { key: "at", label: labels.when, cell: (row) => row.label + (row.isOpen ? ` (${labels.open})` : "") },
      ...each,
      { key: "total", label: labels.total, number: true, cell: (row) => (row.parts ? amount(total(row)) : null) },
    ];
    const made = table({ caption: title, columns, rows: points });
    update(place, made);
  }
  return { node, draw };
}
