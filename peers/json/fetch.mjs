// Sends a request over HTTP, with nothing but Node, and prints the document of the response.
//
//     fetch.mjs METHOD URL [BODY]

const [method, url, body] = process.argv.slice(2)
const headers = body ? { 'Content-Type': 'application/json' } : {}
const response = await fetch(url, { method, headers, body: body || undefined })
console.log(await response.text())
