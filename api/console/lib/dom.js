// Elements out of properties and text; no string is ever read as HTML.

const SVG = "http://www.w3.org/2000/svg";
const PRESSED = "button, input, select, textarea, form";
const made = new WeakMap(); // of a parent: the children that `keyed` keeps there, by key

// el("a", {href: "/x", class: "link", on: {click() {}}, data: {id: 1}}, "text", node, [more], null)
export function el(tag, props, ...children) {
  return fill(document.createElement(tag), props, children);
}

// The same for pictures.
export function svg(tag, props, ...children) {
  return fill(document.createElementNS(SVG, tag), props, children);
}

// Empties a node and gives it other children; returns the node.
export function replace(node, ...children) {
  node.replaceChildren(...flat(children));
  return node;
}

// Sets the children of a node and touches only changed ones: selected, focused or unfolded parts in it stay so. A button
// that stays is the same one when its neighbours come and go: a click whose press has begun is not lost.
export function update(node, ...children) {
  const next = flat(children).map((child) => (child instanceof Node ? child : document.createTextNode(child)));
  const before = [...node.childNodes];
  next.forEach((child, at) => {
    for (const gone of before.splice(0, passed(before, child))) gone.remove();
    const old = before[0];
    if (!old) node.append(child);
    else if (isPressed(old) && next.slice(at).findIndex((each) => each.isEqualNode(old)) > 0) old.before(child);
    else if (!grown(before.shift(), child)) old.replaceWith(child);
  });
  for (const gone of before) gone.remove();
  return node;
}

const isPressed = (node) => node instanceof Element && node.matches(PRESSED);

// The number of buttons before the child that equals `child`; 0 if there is none.
function passed(before, child) {
  const at = before.findIndex((each) => !isPressed(each) || each.isEqualNode(child));
  return at > 0 && before[at].isEqualNode(child) ? at : 0;
}

// Makes a node equal to another one, where it may stay; buttons and inputs do not, since their handlers know the data
// they were made for.
function grown(node, next) {
  if (node.isEqualNode(next)) return true;
  if (node.nodeName !== next.nodeName || node.dataset?.row !== next.dataset?.row) return false;
  if (node.nodeType === Node.TEXT_NODE) {
    node.data = next.data;
    return true;
  }
  if (isPressed(node)) return false;
  for (const { name } of [...node.attributes]) if (!next.hasAttribute(name) && name !== "open") node.removeAttribute(name);
  for (const { name, value } of next.attributes) {
    if (name === "style") node.style.cssText = next.style.cssText;
    else if (node.getAttribute(name) !== value) node.setAttribute(name, value);
  }
  update(node, [...next.childNodes]);
  return true;
}

// Makes the children of `parent` those of `items`, in their order, and touches none that may stay: the focused one
// keeps the focus. `make(item)` makes a node; `update(node, item)` changes one that was there.
export function keyed(parent, items, keyOf, make, update) {
  const before = made.get(parent) ?? new Map();
  const after = new Map();
  let place = parent.firstChild;
  for (const item of items) {
    const key = keyOf(item);
    let node = before.get(key);
    if (node === undefined) node = make(item);
    else update?.(node, item);
    after.set(key, node);
    if (node === place) place = place.nextSibling;
    else parent.insertBefore(node, place);
  }
  const kept = new Set(after.values());
  for (const node of [...parent.childNodes]) if (!kept.has(node)) node.remove();
  made.set(parent, after);
}

function fill(node, props, children) {
  for (const [name, value] of Object.entries(props ?? {})) {
    if (name === "style" || name.startsWith("on") && name !== "on") {
      throw new TypeError(`${name} is no attribute of an element here`);
    }
    if (name === "on") {
      for (const [event, act] of Object.entries(value)) node.addEventListener(event, act);
    } else if (name === "data") {
      for (const [key, text] of Object.entries(value)) node.dataset[key] = text;
    } else if (name !== "value" && value !== false && value !== null && value !== undefined) {
      node.setAttribute(name, value === true ? "" : value);
    }
  }
  node.append(...flat(children));
  // Behind the children: a list of choices takes only a value that it has.
  const value = props?.value;
  if (value !== null && value !== undefined) {
    if ("value" in node) node.value = value;
    else node.setAttribute("value", value);
  }
  return node;
}

function flat(children) {
  return children
    .flat(Infinity)
    .filter((child) => child !== null && child !== undefined && child !== false)
    .map((child) => (child instanceof Node ? child : String(child)));
}
