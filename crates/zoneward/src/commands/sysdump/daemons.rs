//! Daemons of this machine: their command lines, metrics, health and status.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::time::Duration;

use super::{Collected, DumpPart};
use crate::commands::cleanup::running;

/// Timeout of connecting, and of each read.
const PATIENCE: Duration = Duration::from_secs(3);
/// Bytes of one response.
const LONGEST: u64 = 16 << 20;

/// Default addresses on loopback, and the pages of each daemon.
const DAEMONS: [(&str, u16, &[&str]); 7] = [
    ("node", 10249, &["/metrics", "/configz", "/proxyMode"]),
    ("node-health", 10256, &["/healthz", "/livez"]),
    ("controller", 10270, &["/metrics", "/readyz?verbose", "/livez?verbose", "/status"]),
    ("mesh-proxy", 10271, &["/metrics", "/readyz?verbose"]),
    ("mesh-control", 10272, &["/metrics", "/readyz?verbose", "/status"]),
    ("dashboard", 10273, &["/api/status"]),
    ("up-proxy", 10280, &["/metrics", "/readyz?verbose"]),
];

pub(super) fn collect(collected: &mut Collected) {
    let lines = running::zoneward_command_lines(Path::new("/proc"));
    let text: String =
        lines.iter().map(|(process, words)| format!("{process} {}\n", words.join(" "))).collect();
    match text.is_empty() {
        false => collected.add(DumpPart::new("daemons/command-lines.txt", "/proc/*/cmdline", text)),
        true => collected.miss("daemons/command-lines.txt", "no process of Zoneward runs on this machine"),
    }
    for (name, port, pages) in DAEMONS {
        let address = SocketAddr::from(([127, 0, 0, 1], port));
        for page in pages {
            let file = page.trim_start_matches('/').split('?').next().unwrap_or_default().replace('/', "-");
            let (file, url) = (format!("daemons/{name}-{file}.txt"), format!("http://{address}{page}"));
            match get(address, page) {
                Ok(text) => collected.add(DumpPart::new(file, url, text)),
                Err(error) => {
                    collected.miss(file, format!("{url}: {error}"));
                    if error.kind() == std::io::ErrorKind::ConnectionRefused {
                        break;
                    }
                }
            }
        }
    }
}

/// The body of a response, with the first line before it if the status is not 200.
fn get(address: SocketAddr, page: &str) -> std::io::Result<String> {
    let mut stream = TcpStream::connect_timeout(&address, PATIENCE)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_write_timeout(Some(PATIENCE))?;
    let request = format!("GET {page} HTTP/1.0\r\nhost: {address}\r\nconnection: close\r\n\r\n");
    stream.write_all(request.as_bytes())?;
    let mut answer = Vec::new();
    stream.take(LONGEST).read_to_end(&mut answer)?;
    let answer = String::from_utf8_lossy(&answer).into_owned();
    let (head, body) = answer.split_once("\r\n\r\n").unwrap_or((answer.as_str(), ""));
    let status = head.lines().next().unwrap_or_default();
    Ok(match status.contains(" 200 ") {
        true => body.to_owned(),
        false => format!("{status}\n\n{body}"),
    })
}
