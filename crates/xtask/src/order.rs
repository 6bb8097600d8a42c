//! `cargo xtask order`: writes the linker script that puts the functions of a running proxy next to each other.
//!
//! The kernel maps 64 KiB of a program around each page that is touched. Spread over the whole binary, a thousand small
//! functions hold half of it in memory; side by side they need a tenth.

use std::collections::BTreeSet;
use std::fs;
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::path::Path;
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

use crate::{Stop, callgrind, report, shell, tools};

/// From the repository's root.
const SCRIPT: &str = "crates/zoneward/order.ld";

const SECONDS: &str = "5";

/// Watches a proxy at work and writes down which functions it called.
pub(crate) fn run() -> Result<(), Stop> {
    for tool in tools::L7.iter().chain([&tools::VALGRIND]) {
        tools::ensure(tool, true)?;
    }
    report::heading("build zoneward in release mode");
    let mut build = shell::cargo(&["build", "--release", "--package", "zoneward"]);
    // Valgrind knows the names in the ordinary section of code only.
    build.env("ZONEWARD_LINK_ORDER", "off");
    shell::run(&mut build, "the build", "the compiler says above what is wrong")?;
    let binary = shell::target_dir().join("release").join("zoneward");
    report::heading("watch it as a gateway, on HTTP/1.1 and HTTP/2");
    let output = watch(&binary)?;
    let mut nm = shell::program("nm");
    let listing = shell::capture(nm.arg(&binary), "nm", "it comes with binutils")?;
    let script = script(&callgrind::functions(&output), &listing);
    let file = shell::root().join(SCRIPT);
    fs::write(&file, &script).map_err(|error| failed(&file, &error))?;
    report::say(&format!("{SCRIPT} has {} names.", script.matches("*(.text.").count()));
    Ok(())
}

/// Runs the gateway under callgrind with some load, and answers what callgrind wrote.
fn watch(binary: &Path) -> Result<String, Stop> {
    let folder = shell::target_dir().join("order");
    fs::create_dir_all(&folder).map_err(|error| failed(&folder, &error))?;
    let [port, upstream] = [free_port()?, free_port()?];
    let write = |name: &str, text: String| {
        let file = folder.join(name);
        fs::write(&file, text).map_err(|error| failed(&file, &error)).map(|()| file)
    };
    let nginx = write("nginx.conf", nginx(&folder, upstream))?;
    let objects = write("objects.json", objects(port, upstream))?;
    let output = folder.join("callgrind.out");
    let mut command = shell::program("nginx");
    let _nginx = Ended::start(command.arg("-p").arg(&folder).arg("-c").arg(nginx))?;
    let mut command = shell::program("valgrind");
    command.args(["--tool=callgrind", "--quiet", "--demangle=no"]).args(callgrind::PLAIN_OUTPUT);
    command.arg(format!("--callgrind-out-file={}", output.display())).arg(binary);
    command.args(
        "mesh proxy --gateway edge --threads 1 --bind 127.0.0.1 --bind-address 127.0.0.1:0 -f".split(' '),
    );
    let mut proxy = Ended::start(command.arg(objects))?;
    proxy.wait_for(port)?;
    let url = format!("http://127.0.0.1:{port}/");
    let mut wrk = shell::program("wrk");
    wrk.args(["-t1", "-c8", "-d", SECONDS, &url]);
    shell::run(&mut wrk, "wrk", "see the output above")?;
    let mut h2load = shell::program("h2load");
    h2load.args(["-c2", "-m8", "-D", SECONDS, &url]);
    shell::run(&mut h2load, "h2load", "see the output above")?;
    proxy.end()?;
    fs::read_to_string(&output).map_err(|error| failed(&output, &error))
}

fn failed(file: &Path, error: &std::io::Error) -> Stop {
    Stop::Failed(format!("{}: {error}", file.display()))
}

fn free_port() -> Result<u16, Stop> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).and_then(|listener| listener.local_addr());
    listener.map(|at| at.port()).map_err(|error| Stop::Failed(format!("no port is free: {error}")))
}

/// A program that is ended, at the latest when this is dropped.
struct Ended(Child);

impl Ended {
    fn start(command: &mut std::process::Command) -> Result<Ended, Stop> {
        let name = command.get_program().to_string_lossy().into_owned();
        let child = command.stdout(Stdio::null()).spawn();
        child.map(Ended).map_err(|error| Stop::Failed(format!("{name} could not be run: {error}")))
    }

    fn wait_for(&mut self, port: u16) -> Result<(), Stop> {
        let begin = Instant::now();
        while TcpStream::connect((Ipv4Addr::LOCALHOST, port)).is_err() {
            if begin.elapsed() > Duration::from_secs(120) || !matches!(self.0.try_wait(), Ok(None)) {
                return Err(Stop::Failed("the gateway does not listen: see the output above".to_string()));
            }
            std::thread::sleep(Duration::from_millis(200));
        }
        Ok(())
    }

    fn end(&mut self) -> Result<(), Stop> {
        let mut kill = shell::program("kill");
        shell::run(kill.arg(self.0.id().to_string()), "kill", "the gateway had gone")?;
        self.0.wait().map(drop).map_err(|error| Stop::Failed(format!("the gateway does not end: {error}")))
    }
}

impl Drop for Ended {
    fn drop(&mut self) {
        if matches!(self.0.try_wait(), Ok(None)) && self.end().is_err() {
            let _ = self.0.kill();
        }
    }
}

fn nginx(folder: &Path, port: u16) -> String {
    let folder = folder.display();
    format!(
        "daemon off; master_process off; pid {folder}/nginx.pid; error_log stderr crit; events {{}} http {{ access_log off; \
         client_body_temp_path {folder}; proxy_temp_path {folder}; fastcgi_temp_path {folder}; uwsgi_temp_path {folder}; \
         scgi_temp_path {folder}; server {{ listen 127.0.0.1:{port}; location / {{ return 200 \"hello\\n\"; }} }} }}\n"
    )
}

/// A gateway with one route to one Service.
fn objects(port: u16, upstream: u16) -> String {
    let group = r#""apiVersion":"zoneward.dev/v1alpha1""#;
    format!(
        r#"{{"apiVersion":"v1","kind":"List","items":[
{{"apiVersion":"v1","kind":"Service","metadata":{{"name":"web","namespace":"default"}},
  "spec":{{"clusterIP":"10.96.0.10","clusterIPs":["10.96.0.10"],"ports":[{{"name":"http","port":80}}]}}}},
{{"apiVersion":"discovery.k8s.io/v1","kind":"EndpointSlice","metadata":{{"name":"web-1","namespace":"default",
  "labels":{{"kubernetes.io/service-name":"web"}}}},"addressType":"IPv4",
  "ports":[{{"name":"http","protocol":"TCP","port":{upstream}}}],
  "endpoints":[{{"addresses":["127.0.0.1"],"conditions":{{"ready":true}},"zone":"zone-a"}}]}},
{{{group},"kind":"MeshGateway","metadata":{{"name":"edge","namespace":"default"}},
  "spec":{{"listeners":[{{"name":"http","port":{port},"protocol":"HTTP"}}]}}}},
{{{group},"kind":"MeshGatewayHTTPRoute","metadata":{{"name":"all","namespace":"default"}},
  "spec":{{"targetRef":{{"kind":"MeshGateway","name":"edge"}},"rules":[{{"matches":[{{"path":{{"type":"Prefix","value":"/"}}}}],
  "default":{{"backendRefs":[{{"kind":"MeshService","name":"web"}}]}}}}]}}}}]}}"#
    )
}

/// The name of a function, from a line of `nm`: `address type name`.
fn function(line: &str) -> Option<&str> {
    match line.split_whitespace().collect::<Vec<_>>()[..] {
        [_, "t" | "T" | "w" | "W", name] => Some(name),
        _ => None,
    }
}

/// The name of a function without what another compiler or another version would change: `Cs` and a hash up to `_` before
/// the name of each crate. A place for each letter and not `*`, which would take in other functions.
fn pattern(symbol: &str) -> String {
    let mut pieces = symbol.split("Cs");
    let mut pattern = pieces.next().unwrap_or_default().to_string();
    for piece in pieces {
        let hashed =
            piece.split_once('_').filter(|(hash, _)| hash.chars().all(|c| c.is_ascii_alphanumeric()));
        match hashed {
            Some((hash, rest)) => pattern.push_str(&format!("Cs{}_{rest}", "?".repeat(hash.len()))),
            None => pattern.push_str(&format!("Cs{piece}")),
        }
    }
    pattern
}

fn script(called: &BTreeSet<&str>, listing: &str) -> String {
    let functions = listing.lines().filter_map(function).filter(|name| called.contains(name));
    let patterns: BTreeSet<String> = functions.map(pattern).collect();
    let lines: String = patterns.iter().map(|pattern| format!("    *(.text.{pattern})\n")).collect();
    format!("{HEAD}SECTIONS\n{{\n  .text.used :\n  {{\n{lines}  }}\n}}\nINSERT BEFORE .text;\n")
}

const HEAD: &str = "\
/* Written by `cargo xtask order`: the functions that a running proxy calls, without the hashes in their names.
 *
 * The kernel maps 64 KiB of a program around each page that is touched, so functions that are used and lie apart hold
 * much of the program in memory. Here they lie side by side. A name that no longer exists does no harm, and a function
 * that is not named lies where the linker likes: a list that has grown old costs memory and nothing else.
 */
";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_leave_out_what_changes_from_build_to_build() {
        assert_eq!(pattern("_RNvNtCs9ltgdHTiPiY_4core3fmt5write"), "_RNvNtCs???????????_4core3fmt5write");
        assert_eq!(pattern("_RNvNtCsA1_3std4CsvX"), "_RNvNtCs??_3std4CsvX");
        assert_eq!(pattern("main"), "main");
    }

    #[test]
    fn functions_that_were_called_are_named_and_nothing_else() {
        let listing = "\
0000000000001000 t _RNvCs1_1a1b
0000000000002000 t _RNvCs1_1a1c
0000000000003000 d _RNvCs1_1a4data
                 U malloc
";
        let script = script(&["_RNvCs1_1a1b", "_RNvCs1_1a4data", "malloc", "gone"].into(), listing);
        assert_eq!(script.matches("*(").count(), 1, "{script}");
        assert!(script.contains("    *(.text._RNvCs?_1a1b)\n"), "{script}");
        assert!(script.ends_with("INSERT BEFORE .text;\n"));
    }
}
