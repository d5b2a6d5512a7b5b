// Talks to http_server.js over four kept connections and compares every body's hash.
// http_client.js HOST PORT
'use strict';
const crypto = require('crypto');
const http = require('http');

const SIZES = [1, 1000, 100000, 3000000];
const REQUESTS = 240;
const [host, port] = process.argv.slice(2);
const agent = new http.Agent({ keepAlive: true, maxSockets: 4 });

const sha256 = (bytes) => crypto.createHash('sha256').update(bytes).digest('hex');

function ask(method, path, body) {
  return new Promise((done, fail) => {
    const request = http.request({ host, port, method, path, agent }, (response) => {
      const pieces = [];
      response.on('data', (piece) => pieces.push(piece));
      response.on('end', () => done({ headers: response.headers, body: Buffer.concat(pieces) }));
      response.on('error', fail);
    });
    request.on('error', fail);
    request.end(body);
  });
}

async function one(number) {
  const size = SIZES[(number >> 1) % SIZES.length];
  if (number % 2 === 0) {
    const sent = crypto.randomBytes(size);
    const answer = (await ask('POST', '/', sent)).body.toString();
    if (answer !== `${sha256(sent)} ${size}`) throw new Error(`POST of ${size}: ${answer}`);
  } else {
    const { headers, body } = await ask('GET', `/${size}`);
    if (body.length !== size || sha256(body) !== headers['x-sha256']) {
      throw new Error(`GET of ${size}: ${body.length} bytes with another hash`);
    }
  }
}

Promise.all(Array.from({ length: REQUESTS }, (_, number) => one(number))).then(
  () => {
    agent.destroy();
    console.log('ok');
  },
  (error) => {
    console.error(error);
    process.exit(1);
  },
);
