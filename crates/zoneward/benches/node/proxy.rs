//! The program under measurement, as the kernel accounts for it.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use super::world::World;

/// The kernel counts CPU in hundredths of a second (USER_HZ).
const TICK: Duration = Duration::from_millis(10);

/// A million endpoints on a busy machine.
const PATIENCE: Duration = Duration::from_secs(600);

pub(crate) struct Proxy {
    child: Child,
}

impl Proxy {
    pub(crate) fn start(world: &World) -> Proxy {
        let child = Command::new(env!("CARGO_BIN_EXE_zoneward"))
            .args([
                "node",
                "--proxy-mode=nftables",
                "--hostname-override=n1",
                "--lease-namespace=",
                "--api-socket",
            ])
            .arg(world.socket())
            .args(
                std::env::var("ZONEWARD_BENCH_CONTENT_TYPE")
                    .map(|kind| format!("--kube-api-content-type={kind}")),
            )
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        Proxy { child }
    }

    fn proc_text(&self, name: &str) -> String {
        std::fs::read_to_string(format!("/proc/{}/{name}", self.child.id())).unwrap()
    }

    /// What it has used so far.
    pub(crate) fn cpu(&self) -> Duration {
        cpu_of(&self.child.id().to_string())
    }

    pub(crate) fn memory(&self) -> String {
        let of = |field: &str| self.kilobytes(field) / 1024;
        let (resident, private, most) = (of("VmRSS:"), of("RssAnon:"), of("VmHWM:"));
        format!("{resident} MB resident, {private} MB of them private, at most {most} MB")
    }

    /// A field of /proc/PID/status, as `VmRSS:`.
    pub(crate) fn kilobytes(&self, field: &str) -> u64 {
        let status = self.proc_text("status");
        let line = status.lines().find(|line| line.starts_with(field)).unwrap();
        line.split_whitespace().nth(1).unwrap().parse().unwrap()
    }

    /// Waits until a revision is in the kernel.
    pub(crate) fn until_programmed(&self, revision: u64) {
        let begin = Instant::now();
        while programmed().is_none_or(|seen| seen < revision) {
            assert!(begin.elapsed() < PATIENCE, "not programmed after ten minutes");
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}

fn programmed() -> Option<u64> {
    let mut stream = TcpStream::connect("127.0.0.1:10249").ok()?;
    stream.write_all(b"GET /metrics HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n").ok()?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).ok()?;
    let line = answer.lines().find(|line| line.starts_with("zoneward_node_programmed_revision "))?;
    line.rsplit(' ').next()?.parse().ok()
}

impl Drop for Proxy {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// What this process has used so far: the API.
pub(crate) fn api_cpu() -> Duration {
    cpu_of("self")
}

fn cpu_of(process: &str) -> Duration {
    let stat = std::fs::read_to_string(format!("/proc/{process}/stat")).unwrap();
    let fields: Vec<&str> = stat.rsplit(')').next().unwrap().split_whitespace().collect();
    let ticks: u32 = fields[11].parse::<u32>().unwrap() + fields[12].parse::<u32>().unwrap();
    TICK * ticks
}
