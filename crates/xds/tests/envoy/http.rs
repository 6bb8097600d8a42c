//! HTTP/1.1 as far as these tests need it: a client, and backends that answer with what they were asked.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use fixtures::eventually;
use serde_json::{Value, json};

/// A request head or an answer.
#[derive(Debug, Default, Clone)]
pub struct Message {
    /// The request line or status line.
    pub first: String,
    /// Headers, names in lower case.
    pub headers: Vec<(String, String)>,
    pub body: Vec<u8>,
}

impl Message {
    pub fn read(from: &mut impl BufRead, is_answer_to_head: bool) -> std::io::Result<Option<Self>> {
        let mut message = Self::default();
        let mut line = String::new();
        if from.read_line(&mut line)? == 0 {
            return Ok(None);
        }
        message.first = line.trim_end().to_owned();
        loop {
            let mut line = String::new();
            if from.read_line(&mut line)? == 0 || line.trim_end().is_empty() {
                break;
            }
            if let Some((name, value)) = line.trim_end().split_once(':') {
                message.headers.push((name.to_ascii_lowercase(), value.trim().to_owned()));
            }
        }
        if is_answer_to_head {
            return Ok(Some(message));
        }
        if message.header("transfer-encoding").is_some_and(|value| value.contains("chunked")) {
            loop {
                let mut size = String::new();
                from.read_line(&mut size)?;
                let size = usize::from_str_radix(size.trim(), 16).unwrap_or(0);
                let mut chunk = vec![0; size + 2];
                from.read_exact(&mut chunk)?;
                if size == 0 {
                    break;
                }
                message.body.extend_from_slice(&chunk[..size]);
            }
        } else if let Some(length) = message.header("content-length").and_then(|l| l.parse().ok()) {
            message.body = vec![0; length];
            from.read_exact(&mut message.body)?;
        }
        Ok(Some(message))
    }

    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(n, _)| n == name).map(|(_, value)| value.as_str())
    }

    /// All lines of a header, joined.
    pub fn joined(&self, name: &str) -> Option<String> {
        let name = name.to_ascii_lowercase();
        let lines: Vec<&str> =
            self.headers.iter().filter(|(n, _)| *n == name).map(|(_, v)| v.as_str()).collect();
        (!lines.is_empty()).then(|| lines.join(","))
    }

    pub fn status(&self) -> u16 {
        self.first.split(' ').nth(1).and_then(|status| status.parse().ok()).unwrap_or(0)
    }

    /// The name of the backend that answered.
    pub fn backend(&self) -> Option<String> {
        self.json()["backend"].as_str().map(str::to_owned)
    }

    pub fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap_or_default()
    }
}

/// A connection to a proxy.
pub struct Connection<S: Read = TcpStream> {
    reader: BufReader<S>,
}

impl Connection {
    pub fn open(to: SocketAddr) -> std::io::Result<Self> {
        let stream = TcpStream::connect_timeout(&to, Duration::from_secs(5))?;
        stream.set_read_timeout(Some(Duration::from_secs(10)))?;
        stream.set_nodelay(true)?;
        Ok(Self::over(stream))
    }
}

impl<S: Read + Write> Connection<S> {
    pub fn over(stream: S) -> Self {
        Self { reader: BufReader::new(stream) }
    }

    pub fn send(
        &mut self,
        method: &str,
        host: &str,
        path: &str,
        headers: &[(String, String)],
    ) -> std::io::Result<Message> {
        self.send_body(method, host, path, headers, "")
    }

    pub fn send_body(
        &mut self,
        method: &str,
        host: &str,
        path: &str,
        headers: &[(String, String)],
        body: &str,
    ) -> std::io::Result<Message> {
        let mut text = format!("{method} {path} HTTP/1.1\r\nhost: {host}\r\n");
        for (name, value) in headers {
            text += &format!("{name}: {value}\r\n");
        }
        if matches!(method, "POST" | "PUT" | "PATCH") {
            text += &format!("content-length: {}\r\n", body.len());
        }
        self.reader.get_mut().write_all((text + "\r\n" + body).as_bytes())?;
        let answer = Message::read(&mut self.reader, method == "HEAD")?;
        answer.ok_or_else(|| std::io::ErrorKind::UnexpectedEof.into())
    }
}

/// One request on a connection of its own.
pub fn request(
    to: SocketAddr,
    method: &str,
    host: &str,
    path: &str,
    headers: &[(String, String)],
) -> std::io::Result<Message> {
    Connection::open(to)?.send(method, host, path, headers)
}

/// What backends were asked, by name.
pub type Log = Arc<Mutex<BTreeMap<String, Vec<Message>>>>;

/// A backend that says who it is and what it was asked.
pub struct Echo {
    pub address: SocketAddr,
    down: Arc<AtomicBool>,
}

impl Echo {
    pub fn start(name: &str, log: &Log) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let down = Arc::new(AtomicBool::new(false));
        let (name, log, stopped) = (name.to_owned(), log.clone(), down.clone());
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                if stopped.load(Ordering::SeqCst) {
                    return;
                }
                let (name, log, stopped) = (name.clone(), log.clone(), stopped.clone());
                std::thread::spawn(move || answer(stream, &name, &log, &stopped));
            }
        });
        Self { address, down }
    }

    /// Refuses connections from now on, and returns when those that were open have ended.
    pub fn stop(&self) {
        self.end();
        // Each connection has a copy of it, and so has the listener.
        eventually("the end of all connections", || Arc::strong_count(&self.down) == 1);
    }

    fn end(&self) {
        // Once only: the port may belong to another process afterwards.
        if !self.down.swap(true, Ordering::SeqCst) {
            let _ = TcpStream::connect(self.address);
        }
    }
}

impl Drop for Echo {
    fn drop(&mut self) {
        self.end();
    }
}

fn answer(stream: TcpStream, name: &str, log: &Log, stopped: &AtomicBool) {
    let _ = stream.set_nodelay(true);
    let _ = stream.set_read_timeout(Some(Duration::from_millis(50)));
    let mut reader = BufReader::new(stream);
    while !stopped.load(Ordering::SeqCst) {
        match reader.fill_buf() {
            Ok([]) => return,
            Ok(_) => {}
            Err(_) => continue,
        }
        let _ = reader.get_ref().set_read_timeout(Some(Duration::from_secs(5)));
        let Ok(Some(request)) = Message::read(&mut reader, false) else { return };
        let _ = reader.get_ref().set_read_timeout(Some(Duration::from_millis(50)));
        let mut words = request.first.split(' ');
        let (method, path) = (words.next().unwrap_or_default(), words.next().unwrap_or_default());
        let body = json!({"backend": name, "method": method, "path": path, "headers": request.headers,
            "body": String::from_utf8_lossy(&request.body)});
        let body = body.to_string();
        let extra: Value =
            request.header("x-echo").and_then(|text| serde_json::from_str(text).ok()).unwrap_or_default();
        let extra: String = extra
            .as_object()
            .into_iter()
            .flatten()
            .map(|(name, value)| format!("{name}: {}\r\n", value.as_str().unwrap_or_default()))
            .collect();
        // `x-status` asks for a status, `x-delay` for a pause in milliseconds; with `x-only`, only this backend obeys.
        let is_asked = request.header("x-only").is_none_or(|only| only == name);
        let status = request.header("x-status").filter(|_| is_asked).unwrap_or("200");
        let delay = request.header("x-delay").filter(|_| is_asked).and_then(|delay| delay.parse().ok());
        std::thread::sleep(Duration::from_millis(delay.unwrap_or(0)));
        let head = format!("HTTP/1.1 {status} Status\r\ncontent-length: {}\r\n{extra}\r\n", body.len());
        let text = if method == "HEAD" { head } else { head + &body };
        log.lock().unwrap().entry(name.to_owned()).or_default().push(request);
        if reader.get_mut().write_all(text.as_bytes()).is_err() {
            return;
        }
    }
}
