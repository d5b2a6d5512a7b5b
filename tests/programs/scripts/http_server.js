// POST answers with the body's SHA-256 and length; GET /N answers with N random bytes,
// their SHA-256 in a header. The same protocol as HttpServe.java.
// http_server.js PORT [PROCESSES, which share the listener that one more has]
'use strict';
const cluster = require('cluster');
const crypto = require('crypto');
const http = require('http');

const sha256 = (bytes) => crypto.createHash('sha256').update(bytes).digest('hex');

const serve = () => http.createServer((request, response) => {
  const pieces = [];
  request.on('data', (piece) => pieces.push(piece));
  request.on('end', () => {
    if (request.method === 'POST') {
      const body = Buffer.concat(pieces);
      response.end(`${sha256(body)} ${body.length}`);
      return;
    }
    const body = crypto.randomBytes(Number(request.url.slice(1)));
    response.setHeader('x-sha256', sha256(body));
    response.end(body);
  });
}).listen(Number(process.argv[2]), '0.0.0.0');

const processes = Number(process.argv[3] || 0);
if (processes === 0 || !cluster.isPrimary) serve();
else for (let i = 0; i < processes; i++) cluster.fork();

process.on('SIGTERM', () => process.exit(0));
