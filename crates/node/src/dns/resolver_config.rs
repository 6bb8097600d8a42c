//! The configuration of systemd-resolved: names of Services and reverse names of their addresses are asked here.

use std::net::SocketAddr;
use std::path::Path;
use std::time::Duration;
use std::{fs, io};

use anyhow::{Context, Result, bail};
use ipnet::IpNet;
use plan::dns::DnsName;

/// The drop-in file. Nothing else writes it.
pub const PATH: &str = "/etc/systemd/resolved.conf.d/zoneward.conf";
const RELOAD: [&str; 3] = ["systemctl", "try-reload-or-restart", "systemd-resolved.service"];
const RELOAD_TIMEOUT: Duration = Duration::from_secs(30);

/// The value of `Domains=`.
pub fn domains(domain: &DnsName, ranges: &[IpNet]) -> String {
    let zones = ranges.iter().flat_map(DnsName::reverse_zones);
    let route = |name: DnsName| format!("~{}", name.to_string().trim_end_matches('.'));
    let routes: Vec<String> = [domain.clone()].into_iter().chain(zones).map(route).collect();
    routes.join(" ")
}

fn text(address: SocketAddr, domains: &str) -> String {
    let server = if address.port() == 53 { address.ip().to_string() } else { address.to_string() };
    format!(
        "# Written by zoneward with --configure-resolver, and removed at its end or by `zoneward cleanup`.\n\
         [Resolve]\nDNS={server}\nDomains={domains}\n"
    )
}

/// Fails early if the file could not be written.
pub(super) fn check_writable() -> Result<()> {
    let folder = folder();
    let probe = folder.join(".zoneward");
    let written = fs::create_dir_all(folder)
        .and_then(|()| fs::write(&probe, ""))
        .and_then(|()| fs::remove_file(&probe));
    written.with_context(|| {
        format!("--configure-resolver: {} cannot be written: run as root, or without it, and write the file once by hand; the log has its values", folder.display())
    })
}

fn folder() -> &'static Path {
    Path::new(PATH).parent().unwrap_or(Path::new("/"))
}

/// Writes the file, and lets systemd-resolved read it.
pub(super) async fn install(address: SocketAddr, domains: &str) -> Result<()> {
    let text = text(address, domains);
    if fs::read_to_string(PATH).is_ok_and(|old| old == text) {
        return Ok(());
    }
    let new = format!("{PATH}.new");
    let written = fs::create_dir_all(folder())
        .and_then(|()| fs::write(&new, text))
        .and_then(|()| fs::rename(&new, PATH));
    written.with_context(|| format!("writing {PATH}"))?;
    reload().await
}

/// Removes the file; false if there is none.
pub(super) async fn remove() -> Result<bool> {
    let is_removed = remove_file()?;
    if is_removed {
        reload().await?;
    }
    Ok(is_removed)
}

/// Whether a file is left.
pub fn is_installed() -> bool {
    Path::new(PATH).exists()
}

/// The same for commands.
pub fn remove_blocking() -> Result<()> {
    remove_file()?;
    let status = std::process::Command::new(RELOAD[0]).args(&RELOAD[1..]).status();
    check_reload(status.map(|status| status.success()))
}

fn remove_file() -> Result<bool> {
    match fs::remove_file(PATH) {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(error) => Err(error).with_context(|| format!("removing {PATH}")),
    }
}

async fn reload() -> Result<()> {
    let mut command = tokio::process::Command::new(RELOAD[0]);
    let status = command.args(&RELOAD[1..]).kill_on_drop(true).status();
    match tokio::time::timeout(RELOAD_TIMEOUT, status).await {
        Ok(status) => check_reload(status.map(|status| status.success())),
        Err(_) => check_reload(Ok(false)),
    }
}

fn check_reload(outcome: io::Result<bool>) -> Result<()> {
    let line = RELOAD.join(" ");
    match outcome {
        Ok(true) => Ok(()),
        Ok(false) => bail!("`{line}` failed: run it again"),
        Err(error) => bail!("`{line}` cannot be run ({error}): let systemd-resolved read {PATH}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_file_routes_the_domain_and_the_reverse_zones() {
        let domain = DnsName::parse("cluster.local").unwrap();
        let ranges = ["10.96.0.0/15".parse().unwrap()];
        let domains = domains(&domain, &ranges);
        assert_eq!(domains, "~cluster.local ~96.10.in-addr.arpa ~97.10.in-addr.arpa");
        let file = text("127.0.0.10:53".parse().unwrap(), &domains);
        assert!(file.ends_with(&format!("[Resolve]\nDNS=127.0.0.10\nDomains={domains}\n")), "{file}");
        assert!(text("127.0.0.10:5353".parse().unwrap(), "").contains("DNS=127.0.0.10:5353\n"));
    }
}
