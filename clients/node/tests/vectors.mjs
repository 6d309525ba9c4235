// Plays the golden vectors: a server that expects each request and gives each reply, and the client in between.
//
//     vectors.mjs FILE

import assert from 'node:assert/strict'
import { readFileSync } from 'node:fs'
import net from 'node:net'
import { Client, GeartrainError, JobFailed } from '../index.js'

const vectors = JSON.parse(readFileSync(process.argv[2], 'utf8'))
const requests = []

const server = net.createServer((socket) => {
  let received = ''
  socket.setEncoding('utf8').on('data', (data) => {
    received += data
    // The words of a request are every second line; no word here has a line break.
    const lines = received.split('\r\n')
    if (lines.length < 12) return
    received = ''
    requests.push([2, 4, 6, 8, 10].map((index) => lines[index]))
    const reply = JSON.stringify(vectors[requests.length - 1].reply)
    socket.write(`$${Buffer.byteLength(reply)}\r\n${reply}\r\n`)
  })
})
await new Promise((resolve) => server.listen(0, '127.0.0.1', resolve))

async function outcome(client, { method, arguments: given, options }) {
  try {
    return { returns: await client[method](...given, ...(options ? [options] : [])) }
  } catch (error) {
    if (error instanceof JobFailed) return { raises: { error: 'JobFailed', group: error.group, message: error.reason } }
    if (!(error instanceof GeartrainError)) throw error
    return { raises: { error: error.name, code: error.code, message: error.message, help: error.help } }
  }
}

const client = new Client(`redis://127.0.0.1:${server.address().port}/?prefix=shop`)
for (const vector of vectors) {
  const found = await outcome(client, vector)
  const expected = 'raises' in vector ? { raises: vector.raises } : { returns: vector.returns }
  assert.deepEqual(found, expected, JSON.stringify(vector.arguments))
  const words = requests.at(-1)
  assert.deepEqual(words.slice(0, 4), ['FCALL', 'geartrain_json', '1', 'shop'])
  assert.deepEqual(JSON.parse(words[4]), vector.request)
}
client.close()
server.close()
console.log(vectors.length)
