// Elements from plain calls. What comes from the queue (names, payloads, errors) is hostile text: it becomes text
// nodes and attribute values here, and there is no other way to make an element.

const SVG = 'http://www.w3.org/2000/svg';
const SVG_TAGS = new Set(['svg', 'g', 'path', 'rect', 'line', 'circle', 'text', 'polyline', 'defs', 'clipPath']);

/** Makes an element: h('a.link', {href: '#/jobs', onclick}, 'Jobs'). Children that are null or false are left out. */
export function h(name, props, ...children) {
  const [tag, ...classes] = name.split('.');
  const element = SVG_TAGS.has(tag) ? document.createElementNS(SVG, tag) : document.createElement(tag);
  element.handlers = {};
  for (const [key, value] of Object.entries(props ?? {})) {
    if (value === null || value === undefined || value === false) continue;
    if (key === 'class') classes.push(...value.split(' ').filter(Boolean));
    else if (key === 'key') element.key = String(value);
    else if (key === 'keep') element.keep = value;
    else if (key.startsWith('on')) listen(element, key.slice(2), value);
    else setAttribute(element, key, value);
  }
  if (classes.length) element.setAttribute('class', classes.join(' '));
  append(element, children);
  return element;
}

function setAttribute(element, key, value) {
  // A link never leads to a script, whatever a job is called.
  if (key === 'href' && /^\s*[a-z][a-z0-9+.-]*:/i.test(value) && !String(value).startsWith('blob:')) {
    throw new Error('links stay in the dashboard');
  }
  if (key === 'value' || key === 'checked' || key === 'indeterminate') element[key] = value;
  else element.setAttribute(key, value === true ? '' : String(value));
}

/** Through a table of handlers, so that a new rendering can replace them without changing listeners. */
function listen(element, event, handler) {
  element.handlers[event] = handler;
  element.addEventListener(event, (fired) => element.handlers[event]?.call(element, fired));
}

export function append(element, children) {
  for (const child of children.flat(Infinity)) {
    if (child === null || child === undefined || child === false || child === true) continue;
    element.append(child instanceof Node ? child : document.createTextNode(String(child)));
  }
}

/** Changes the children of an element into the given ones, and keeps the nodes that are still right: focus, selection,
 *  scroll position and open details survive a refresh. */
export function render(element, ...children) {
  const fresh = document.createElement('div');
  append(fresh, children);
  patchChildren(element, fresh);
}

const isSame = (one, other) =>
  one.nodeType === other.nodeType && one.nodeName === other.nodeName && one.key === other.key;

function patchChildren(from, to) {
  const keyed = new Map(
    [...from.childNodes].filter((node) => node.key !== undefined).map((node) => [node.key, node]),
  );
  let at = from.firstChild;
  for (const fresh of [...to.childNodes]) {
    let match = fresh.key === undefined ? at : keyed.get(fresh.key);
    if (fresh.key === undefined) while (match && !isSame(match, fresh)) match = match.nextSibling;
    if (!match || !isSame(match, fresh)) {
      from.insertBefore(fresh, at);
      continue;
    }
    if (match === at) at = at.nextSibling;
    else if (fresh.key === undefined) {
      // What lies between belongs to nothing that follows.
      while (at !== match) at = removeAndNext(at);
      at = match.nextSibling;
    } else from.insertBefore(match, at);
    patch(match, fresh);
  }
  while (at) at = removeAndNext(at);
}

function removeAndNext(node) {
  const next = node.nextSibling;
  node.remove();
  return next;
}

function patch(old, fresh) {
  if (old.nodeType === Node.TEXT_NODE) {
    if (old.data !== fresh.data) old.data = fresh.data;
    return;
  }
  if (old.keep) return;
  for (const [event, handler] of Object.entries(fresh.handlers ?? {})) {
    if (event in (old.handlers ?? {})) old.handlers[event] = handler;
    else listen(old, event, handler);
  }
  for (const { name } of [...old.attributes]) {
    // Whether details are open is the reader's choice.
    if (!fresh.hasAttribute(name) && name !== 'open') old.removeAttribute(name);
  }
  for (const { name, value } of [...fresh.attributes]) {
    if (old.getAttribute(name) !== value && name !== 'open') old.setAttribute(name, value);
  }
  if (old instanceof HTMLInputElement && document.activeElement !== old) {
    if (old.type === 'checkbox' || old.type === 'radio') {
      old.checked = fresh.checked;
      old.indeterminate = fresh.indeterminate;
    } else if (old.value !== fresh.value) old.value = fresh.value;
  }
  patchChildren(old, fresh);
  if (old instanceof HTMLSelectElement && document.activeElement !== old) old.value = fresh.value;
}
