'use strict';
// What the programs read and print: an object of JSON a line. Bytes are strings in which each character is a byte.

const path = require('path');
const readline = require('readline');

// Characters of a payload that are printed to show that it arrived.
const SHOWN_BYTES_MAX = 100;

/** The library, from where setup put it. */
exports.library = function () {
    const directory = process.env.GEARMAN_NODE;
    if (!directory) throw new Error('GEARMAN_NODE must name the directory that setup printed');
    const packages = path.join(directory, 'node_modules');
    const gearmanode = require(path.join(packages, 'gearmanode'));
    // It was made for an earlier release of what it keeps its log with, and with this one it would complain at each line.
    for (const logger of require(path.join(packages, 'winston')).loggers.loggers.values()) logger.silent = true;
    return gearmanode;
};

exports.toBytes = (text) => Buffer.from(text, 'latin1');
exports.toText = (data) => (Buffer.isBuffer(data) ? data.toString('latin1') : data || '');
exports.say = (what) => process.stdout.write(JSON.stringify(what) + '\n');
exports.shown = (data) => exports.toText(data).slice(0, SHOWN_BYTES_MAX);

/** Calls for each line of the input, one after the other. */
exports.eachRequest = async function (obey) {
    for await (const line of readline.createInterface({ input: process.stdin })) {
        await obey(JSON.parse(line));
    }
};

/** The value that `--port` has among the arguments, and the other arguments. */
exports.portAndRest = function () {
    const words = process.argv.slice(2);
    const place = words.indexOf('--port');
    if (place < 0) throw new Error('--port PORT is missing');
    const [, port] = words.splice(place, 2);
    return [Number(port), words];
};
