// node fetch.cjs PROXY URL...: print the bodies of pages that an agent fetched through a proxy.
// The scheme of the proxy chooses the agent; one agent fetches all pages, one after the other.
"use strict";

const http = require("node:http");
const https = require("node:https");
const { HttpProxyAgent } = require("http-proxy-agent");
const { HttpsProxyAgent } = require("https-proxy-agent");
const { SocksProxyAgent } = require("socks-proxy-agent");

function agentFor(proxy, url) {
  if (proxy.startsWith("socks")) return new SocksProxyAgent(proxy);
  return url.startsWith("https:") ? new HttpsProxyAgent(proxy) : new HttpProxyAgent(proxy);
}

function fetchPage(agent, url) {
  return new Promise((resolve, reject) => {
    const asked = (url.startsWith("https:") ? https : http).get(url, { agent }, (answer) => {
      if (answer.statusCode !== 200) {
        reject(new Error(`status ${answer.statusCode}`));
        return;
      }
      answer.on("data", (data) => process.stdout.write(data));
      answer.on("end", resolve);
      answer.on("error", reject);
    });
    asked.on("error", reject);
  });
}

async function main([proxy, ...urls]) {
  const agent = agentFor(proxy, urls[0]);
  for (const url of urls) await fetchPage(agent, url);
}

main(process.argv.slice(2)).catch((error) => {
  process.stderr.write(`${error.message}\n`);
  process.exitCode = 1;
});
