// JSON without loss. A payload keeps its text: digits that no double holds, the order of keys, repeated keys.

/** The JSON text of a payload or a result, as the server sent it. */
export class Raw {
  constructor(text) {
    this.text = text;
  }

  /** What it holds: bytes, text, or JSON. */
  get kind() {
    if (this.text.startsWith('"')) return 'text';
    return this.base64 === null ? 'json' : 'bytes';
  }

  get base64() {
    if (!this.text.startsWith('{')) return null;
    const value = JSON.parse(this.text);
    const keys = Object.keys(value);
    return keys.length === 1 && keys[0] === '$bytes' && typeof value.$bytes === 'string' ? value.$bytes : null;
  }

  /** The bytes that the job has. */
  bytes() {
    const base64 = this.base64;
    if (base64 !== null) return Uint8Array.from(atob(base64), (char) => char.charCodeAt(0));
    return new TextEncoder().encode(this.kind === 'text' ? JSON.parse(this.text) : this.text);
  }
}

/** Keys whose values are shown digit by digit. */
const EXACT = new Set(['payload', 'result', 'data']);

/** Reads a document. Values of the exact keys become `Raw`. */
export function parse(text) {
  const reader = { text, at: 0 };
  const value = readValue(reader);
  return value;
}

const SPACE = /[ \t\n\r]*/y;
const STRING = /"(?:[^"\\]|\\.)*"/y;
const SCALAR = /[^,\]}\s]+/y;

function match(reader, pattern) {
  pattern.lastIndex = reader.at;
  const found = pattern.exec(reader.text)?.[0];
  if (found === undefined) throw new SyntaxError(`the server's reply is not JSON at ${reader.at}`);
  reader.at += found.length;
  return found;
}

function readValue(reader) {
  match(reader, SPACE);
  const first = reader.text[reader.at];
  if (first === '"') return JSON.parse(match(reader, STRING));
  if (first !== '{' && first !== '[') return JSON.parse(match(reader, SCALAR));
  const isObject = first === '{';
  const [result, end] = isObject ? [{}, '}'] : [[], ']'];
  reader.at += 1;
  match(reader, SPACE);
  while (reader.text[reader.at] !== end) {
    if (isObject) {
      match(reader, SPACE);
      const key = JSON.parse(match(reader, STRING));
      match(reader, SPACE);
      reader.at += 1;
      const value = EXACT.has(key) ? readRaw(reader) : readValue(reader);
      // An own property, also for a key such as __proto__.
      Object.defineProperty(result, key, { value, writable: true, enumerable: true, configurable: true });
    } else result.push(readValue(reader));
    match(reader, SPACE);
    if (reader.text[reader.at] === ',') reader.at += 1;
    else if (reader.text[reader.at] !== end) throw new SyntaxError(`the server's reply is not JSON at ${reader.at}`);
  }
  reader.at += 1;
  return result;
}

function readRaw(reader) {
  match(reader, SPACE);
  const begin = reader.at;
  skip(reader);
  const text = reader.text.slice(begin, reader.at);
  return text === 'null' ? null : new Raw(text);
}

function skip(reader) {
  let depth = 0;
  do {
    match(reader, /[\s,:]*/y);
    const char = reader.text[reader.at];
    if (char === '"') match(reader, STRING);
    else if (char === '{' || char === '[') ((depth += 1), (reader.at += 1));
    else if (char === '}' || char === ']') ((depth -= 1), (reader.at += 1));
    else match(reader, /[^,\]}:\s]+/y);
  } while (depth > 0);
}

/** The tokens of a JSON text with line breaks and indentation: [kind, text], each as it was written. */
export function pretty(text) {
  const out = [];
  let depth = 0;
  const newLine = () => out.push(['space', `\n${'  '.repeat(depth)}`]);
  const tokens = text.match(/"(?:[^"\\]|\\.)*"|[{}[\],:]|[^\s{}[\],:"]+/g) ?? [];
  tokens.forEach((token, index) => {
    const next = tokens[index + 1];
    if (token === '{' || token === '[') {
      out.push(['mark', token]);
      if (next !== '}' && next !== ']') ((depth += 1), newLine());
    } else if (token === '}' || token === ']') {
      if (tokens[index - 1] !== '{' && tokens[index - 1] !== '[') ((depth -= 1), newLine());
      out.push(['mark', token]);
    } else if (token === ',') (out.push(['mark', ',']), newLine());
    else if (token === ':') out.push(['mark', ': ']);
    else if (token.startsWith('"')) out.push([next === ':' ? 'name' : 'string', token]);
    else out.push([/^[-\d]/.test(token) ? 'number' : 'word', token]);
  });
  return out;
}

/** Bytes as lines of offset, hexadecimal and text. */
export function hexLines(bytes, max = 4096) {
  const lines = [];
  for (let at = 0; at < Math.min(bytes.length, max); at += 16) {
    const part = [...bytes.slice(at, at + 16)];
    const hex = part.map((byte) => byte.toString(16).padStart(2, '0')).join(' ');
    const text = part.map((byte) => (byte >= 32 && byte < 127 ? String.fromCharCode(byte) : '.')).join('');
    lines.push(`${at.toString(16).padStart(6, '0')}  ${hex.padEnd(47)}  ${text}`);
  }
  if (bytes.length > max) lines.push(`… ${bytes.length - max} more bytes`);
  return lines.join('\n');
}
