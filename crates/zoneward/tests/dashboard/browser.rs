//! For tests: Chromium by its DevTools protocol over two pipes, so that pages under a strict Content-Security-Policy can be
//! clicked, typed into, measured and photographed.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on ends here")]

use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use base64::Engine;
use fixtures::eventually;
use serde_json::{Value, json};

const TIMEOUT: Duration = Duration::from_secs(60);

pub struct Browser {
    child: Child,
    input: Option<ChildStdin>,
    messages: Receiver<Value>,
    last: u64,
    session: Option<String>,
    events: Vec<Value>,
    profile: PathBuf,
}

impl Browser {
    pub fn start(name: &str) -> Self {
        let profile = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("{name}-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&profile);
        // The protocol is spoken on descriptors 3 and 4.
        let mut child = Command::new("sh")
            .args(["-c", "exec \"$0\" \"$@\" 3<&0 4>&1 >/dev/null"])
            .arg(toolbox::path("chromium"))
            .args([
                "--headless",
                "--no-sandbox",
                "--disable-gpu",
                "--disable-dev-shm-usage",
                "--hide-scrollbars",
            ])
            .args(["--proxy-server=127.0.0.1:9", "--remote-debugging-pipe", "--no-first-run"])
            .arg(format!("--user-data-dir={}", profile.display()))
            .arg("about:blank")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let output = child.stdout.take().unwrap();
        let (sender, messages) = channel();
        std::thread::spawn(move || {
            for message in BufReader::new(output).split(0).map_while(Result::ok) {
                let Ok(value) = serde_json::from_slice(&message) else { continue };
                if sender.send(value).is_err() {
                    return;
                }
            }
        });
        let input = child.stdin.take();
        let mut browser =
            Self { child, input, messages, last: 0, session: None, events: Vec::new(), profile };
        let found = browser.call("Target.getTargets", json!({}));
        let pages = found["targetInfos"].as_array().unwrap();
        let id = pages.iter().find(|page| page["type"] == "page").unwrap()["targetId"].clone();
        let attached = browser.call("Target.attachToTarget", json!({"targetId": id, "flatten": true}));
        browser.session = Some(attached["sessionId"].as_str().unwrap().to_owned());
        for domain in ["Page", "Runtime", "Log", "Network", "DOM"] {
            browser.call(&format!("{domain}.enable"), json!({}));
        }
        browser.call("Emulation.setFocusEmulationEnabled", json!({"enabled": true}));
        browser
    }

    pub fn call(&mut self, method: &str, params: Value) -> Value {
        self.answer(method, &params).unwrap_or_else(|error| panic!("{method}: {error}"))
    }

    fn answer(&mut self, method: &str, params: &Value) -> Result<Value, Value> {
        self.last += 1;
        let mut message = json!({"id": self.last, "method": method, "params": params});
        if let Some(session) = &self.session {
            message["sessionId"] = json!(session);
        }
        let input = self.input.as_mut().unwrap();
        input.write_all(&[message.to_string().as_bytes(), &[0]].concat()).unwrap();
        let start = Instant::now();
        loop {
            let left = TIMEOUT.saturating_sub(start.elapsed());
            let message =
                self.messages.recv_timeout(left).unwrap_or_else(|error| panic!("{method}: {error}"));
            if message["id"] == self.last {
                return match &message["error"] {
                    Value::Null => Ok(message["result"].clone()),
                    error => Err(error.clone()),
                };
            }
            self.events.push(message);
        }
    }

    /// Waits for an event of the page.
    fn event(&mut self, method: &str) {
        let start = Instant::now();
        while !self.events.iter().any(|event| event["method"] == method) {
            match self.messages.recv_timeout(TIMEOUT.saturating_sub(start.elapsed())) {
                Ok(message) => self.events.push(message),
                Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => panic!("no {method}"),
            }
        }
    }

    pub fn open(&mut self, url: &str) {
        self.events.retain(|event| event["method"] != "Page.loadEventFired");
        let opened = self.call("Page.navigate", json!({"url": url}));
        assert!(opened["errorText"].is_null(), "{url}: {}", opened["errorText"]);
        self.event("Page.loadEventFired");
    }

    /// The value of an expression, awaited; clicks in it count as the viewer's.
    pub fn eval(&mut self, expression: &str) -> Value {
        self.evaluated(expression).unwrap_or_else(|error| panic!("{expression}: {error}"))
    }

    /// Fails on an exception, and while the page is replaced by another.
    fn evaluated(&mut self, expression: &str) -> Result<Value, Value> {
        let params = json!({"expression": expression, "returnByValue": true, "awaitPromise": true, "userGesture": true});
        let result = self.answer("Runtime.evaluate", &params)?;
        match &result["exceptionDetails"] {
            Value::Null => Ok(result["result"]["value"].clone()),
            exception => Err(exception.clone()),
        }
    }

    pub fn text(&mut self, expression: &str) -> String {
        let value = self.eval(expression);
        value.as_str().unwrap_or_else(|| panic!("{expression} is {value}")).to_owned()
    }

    /// Waits until an expression is true. A page may be replaced meanwhile.
    pub fn until(&mut self, expression: &str) {
        eventually(expression, || {
            let found = self.evaluated(expression);
            if found == Ok(json!(true)) {
                return Ok(());
            }
            Err(format!("{found:?}\n{:?}", self.evaluated("document.body.innerText")))
        });
    }

    pub fn screen(&mut self, width: u32, dark: bool) {
        let size = json!({"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width < 500});
        self.call("Emulation.setDeviceMetricsOverride", size);
        let scheme = if dark { "dark" } else { "light" };
        let features = json!({"features": [{"name": "prefers-color-scheme", "value": scheme}]});
        self.call("Emulation.setEmulatedMedia", features);
    }

    pub fn javascript(&mut self, enabled: bool) {
        self.call("Emulation.setScriptExecutionDisabled", json!({"value": !enabled}));
    }

    pub fn type_text(&mut self, text: &str) {
        self.call("Input.insertText", json!({"text": text}));
    }

    pub fn press(&mut self, key: &str) {
        let text = if key.len() == 1 { key } else { "" };
        for (kind, text) in [("keyDown", text), ("keyUp", "")] {
            self.call("Input.dispatchKeyEvent", json!({"type": kind, "key": key, "text": text}));
        }
    }

    /// What the console, the policy or the network complained about since the last call.
    pub fn complaints(&mut self) -> Vec<String> {
        let is_complaint = |event: &Value| match event["method"].as_str() {
            Some("Runtime.exceptionThrown") => true,
            Some("Log.entryAdded") => true,
            Some("Runtime.consoleAPICalled") => event["params"]["type"] != "log",
            Some("Network.loadingFailed") => {
                event["params"]["canceled"] != true && event["params"]["type"] != "EventSource"
            }
            _ => false,
        };
        let found =
            self.events.iter().filter(|event| is_complaint(event)).map(|event| event["params"].to_string());
        let found = found.collect();
        self.events.clear();
        found
    }

    /// The whole page as PNG, or its first screen as WebP, which is smaller.
    pub fn picture(&mut self, file: &Path, whole: bool) {
        let params = match whole {
            true => json!({"format": "png", "captureBeyondViewport": true}),
            false => json!({"format": "webp", "quality": 60}),
        };
        let taken = self.call("Page.captureScreenshot", params);
        let data = taken["data"].as_str().unwrap();
        std::fs::write(file, base64::engine::general_purpose::STANDARD.decode(data).unwrap()).unwrap();
    }
}

impl Drop for Browser {
    fn drop(&mut self) {
        // Closing the pipe ends it with all its processes.
        drop(self.input.take());
        let start = Instant::now();
        while self.child.try_wait().is_ok_and(|ended| ended.is_none()) && start.elapsed() < TIMEOUT {
            std::thread::sleep(Duration::from_millis(20));
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
        let _ = std::fs::remove_dir_all(&self.profile);
    }
}
