#!/usr/bin/env node
'use strict';
// A client made with `gearmanode`, which does what is asked for on its standard input.
//
//     client.js --port PORT
//
// What can be asked for, and what it says, is told in ../gearman-py/README.md.

const { eachRequest, library, portAndRest, say, toBytes, toText } = require('./lines');

const [port] = portAndRest();
const client = library().client({ host: '127.0.0.1', port });
const server = client.jobServers[0];
const submitted = new Map();

client.on('error', (error) => say({ broken: String(error) }));

async function obey(request) {
    if ('submit' in request) return submit(request);
    if ('status' in request) {
        const job = submitted.get(request.status);
        const status = await new Promise((resolve) => {
            job.once('status', resolve);
            job.getStatus();
        });
        const progress = [Number(status.percent_done_num), Number(status.percent_done_den)];
        return say({ known: Number(status.known) === 1, running: Number(status.running) === 1, progress });
    }
    if ('option' in request) {
        const was = await first(server, { option: () => true, jobServerError: () => false }, () => server.setOption(request.option));
        return say({ option: was });
    }
    if ('ping' in request) {
        const pong = await first(server, { echo: toText }, () => server.echo(request.ping));
        return say({ pong });
    }
    throw new Error('this library administers nothing');
}

/** Waits for the first of some events, after something was done to bring them about. */
function first(emitter, outcomes, act) {
    return new Promise((resolve) => {
        for (const [event, outcome] of Object.entries(outcomes)) {
            emitter.once(event, (...about) => resolve(outcome(...about)));
        }
        act();
    });
}

async function submit(request) {
    const job = client.submitJob(request.submit, toBytes(request.data), {
        background: request.background || false,
        priority: (request.priority || 'normal').toUpperCase(),
        unique: request.unique,
    });
    const heard = { data: [], warnings: [], progress: [] };
    job.on('workData', (data) => heard.data.push(toText(data)));
    job.on('warning', (data) => heard.warnings.push(toText(data)));
    job.on('status', (status) => {
        heard.progress.push([Number(status.percent_done_num), Number(status.percent_done_den)]);
    });
    const ended = new Promise((resolve) => {
        job.on('complete', () => resolve({ ended: 'complete', result: toText(job.response) }));
        job.on('failed', () => resolve({ ended: 'fail', result: '' }));
        job.on('exception', (text) => resolve({ ended: 'exception', result: toText(text) }));
    });
    const created = new Promise((resolve) => {
        job.once('created', () => resolve({ created: job.handle }));
        client.once('jobServerError', (uid, code) => resolve({ refused: code }));
    });
    const answer = await created;
    say(answer);
    if (answer.refused) return;
    if (request.background) {
        submitted.set(job.handle, job);
        return;
    }
    say({ ...(await ended), ...heard });
}

eachRequest(obey).then(() => client.close());
