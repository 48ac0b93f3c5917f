// Ready lines: programs get a proxy from them, each in its own way of quoting.

// The lines for a proxy {host, port, username, password} that fetch `url`: [[name, text], ...]. Without a password
// it is one that asks for none. Names of hosts go to the proxy (socks5h): they are looked up there.
export function lines(proxy, url) {
  const socks = address("socks5h", proxy);
  const http = address("http", proxy);
  return [
    ["curl", curl(proxy, url)],
    ["env", [`export ALL_PROXY=${shell(socks)}`, `export HTTP_PROXY=${shell(http)} HTTPS_PROXY=${shell(http)}`, "export NO_PROXY=localhost,127.0.0.1"].join("\n")],
    ["requests", python("requests", `requests.get(${text(url)}, proxies={"http": ${text(socks)}, "https": ${text(socks)}}, timeout=30)`, 'pip install "requests[socks]"')],
    ["httpx", python("httpx", `httpx.get(${text(url)}, proxy=${text(http)}, timeout=30)`, "pip install httpx")],
    ["node", node(http, url)],
    ["browser", browser(proxy)],
    ["proxychains", chains(proxy)],
  ];
}

// A word of a shell, with any characters.
export const shell = (word) => (/^[\w@%+=:,./-]+$/.test(word) ? word : `'${word.replaceAll("'", "'\\''")}'`);

// The address of a proxy; special characters are encoded.
export function address(scheme, { host, port, username, password }) {
  const name = username && password ? `${part(username)}:${part(password)}@` : "";
  return `${scheme}://${name}${bracketed(host)}:${port}`;
}

const part = (word) => encodeURIComponent(word).replace(/[!'()*]/g, (each) => `%${each.charCodeAt(0).toString(16).toUpperCase()}`);
const bracketed = (host) => (host.includes(":") ? `[${host}]` : host);
// Python's and JavaScript's texts in double quotes take what JSON writes.
const text = (word) => JSON.stringify(word);

function curl({ host, port, username, password }, url) {
  const user = username && password ? ` --proxy-user ${shell(`${username}:${password}`)}` : "";
  return `curl --proxy ${shell(`socks5h://${bracketed(host)}:${port}`)}${user} ${shell(url)}`;
}

const python = (module, call, install) => [`# ${install}`, `import ${module}`, "", `print(${call}.text)`].join("\n");

const node = (http, url) =>
  [
    "// npm install undici",
    'import { ProxyAgent, fetch } from "undici";',
    "",
    `const dispatcher = new ProxyAgent(${text(http)});`,
    `console.log(await (await fetch(${text(url)}, { dispatcher })).text());`,
  ].join("\n");

// Chromium takes no password on its command line, and asks for it when an HTTP proxy does.
const browser = ({ host, port }) => `chromium --proxy-server=${shell(`http://${bracketed(host)}:${port}`)}`;

// Its file divides words at blanks, and knows no quotes: bought credentials have neither.
function chains({ host, port, username, password }) {
  const user = username && password ? ` ${username} ${password}` : "";
  return ["# proxychains.conf", "strict_chain", "proxy_dns", "[ProxyList]", `socks5 ${host} ${port}${user}`].join("\n");
}
