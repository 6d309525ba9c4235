#!/usr/bin/env node
'use strict';
// A worker made with `gearmanode`.
//
//     worker.js --port PORT FUNCTION...
//
// Says `took` for each job. What the functions do is told in ../gearman-py/README.md.

const { library, portAndRest, say, shown } = require('./lines');

const functions = {
    echo: (job) => job.workComplete(job.payload),
    reverse: (job) => job.workComplete(Buffer.from(job.payload).reverse()),
    steps(job) {
        job.sendWorkData('one');
        job.reportWarning('careful');
        job.reportStatus(1, 2);
        job.sendWorkData('two');
        job.workComplete('done');
    },
    fail: (job) => job.reportError(),
    raise: (job) => job.reportException(job.payload),
    hold(job) {
        job.reportStatus(1, 4);
        process.stdin.once('data', () => job.workComplete(job.payload));
    },
};

const [port, names] = portAndRest();
const worker = library().worker({ host: '127.0.0.1', port, withUnique: true });
worker.on('jobServerError', (uid, code, message) => say({ error: code, message }));
worker.on('error', (error) => say({ broken: String(error) }));
worker.setWorkerId('node-worker');
for (const name of names) {
    worker.addFunction(name, (job) => {
        say({ took: shown(job.payload), function: name, unique: job.unique || '' });
        functions[name](job);
    });
}
say({ ready: true });
