// Prints errors as this client throws them, one JSON document per line.
//
//     errors.mjs codes CODE…           the error of a document with each code
//     errors.mjs refusals URL FILE     the refusals of the operations in a file, one after the other; null for a reply

import assert from 'node:assert/strict'
import { readFileSync } from 'node:fs'
import { Client, fromDocument, GeartrainError } from '../index.js'

function show(error) {
  assert(error instanceof GeartrainError && error.name === error.constructor.name)
  console.log(JSON.stringify({ class: error.name, code: error.code, message: error.message, help: error.help }))
}

const [what, ...given] = process.argv.slice(2)
if (what === 'codes') {
  for (const code of given) show(fromDocument({ code, message: 'what is wrong', help: 'what to do' }))
} else {
  const client = new Client(given[0])
  for (const operation of JSON.parse(readFileSync(given[1], 'utf8'))) {
    const [[name, fields]] = Object.entries(operation)
    try {
      await client.ask(name, fields)
      console.log('null')
    } catch (error) {
      show(error)
    }
  }
  client.close()
}
