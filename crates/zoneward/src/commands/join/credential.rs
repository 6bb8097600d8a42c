//! The credential of a joined machine: obtained by a token, stored as a kubeconfig that only its owner can read, and
//! renewed in time.

use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use apimachinery::join::{JoinToken, PATH, renewal_pause, renewal_time};
use base64::Engine as _;
use base64::engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD};
use clock::Clock;
use kube::{Client, Error};
use serde_json::{Value, json};
use store::credentials::{certificate_pem, write_private};
use tokio::sync::watch;
use tracing::{error, info, warn};

use super::authority_discovery;

/// The name in the certificate of every API of `zoneward up`. Its addresses may change, and the authority signs no other
/// server with this name.
const SERVER_NAME: &str = "kubernetes";
const DEFAULT_PORT: &str = "6443";
/// Seconds between attempts to read the credential.
const CHECK_PERIOD: u64 = 60;
/// Deadline of a renewal.
const RENEWAL_TIMEOUT: Duration = Duration::from_secs(10);
/// Deadline of a renewal at start: the node proxy waits for it.
const START_TIMEOUT: Duration = Duration::from_secs(5);

/// The flags for a machine that joins for the first time.
pub(super) struct JoinFlags {
    pub server: String,
    pub token: String,
    pub ca_hash: String,
}

/// A stored credential.
pub(super) struct NodeCredential {
    pub node: String,
    pub server: String,
    pub(super) authority: String,
    token: String,
    issued: i64,
    expires: i64,
}

impl NodeCredential {
    /// Reads a kubeconfig of this file's.
    fn parse(text: &str) -> Option<Self> {
        let config: Value = serde_json::from_str(text).ok()?;
        let cluster = &config["clusters"][0]["cluster"];
        let token = config["users"][0]["user"]["token"].as_str()?;
        // The API verifies the signature.
        let claims = URL_SAFE_NO_PAD.decode(token.split('.').nth(1)?).ok()?;
        let claims: Value = serde_json::from_slice(&claims).ok()?;
        Some(Self {
            node: claims["sub"].as_str()?.strip_prefix("system:node:")?.to_owned(),
            server: cluster["server"].as_str()?.to_owned(),
            authority: cluster["certificate-authority-data"].as_str()?.to_owned(),
            token: token.to_owned(),
            issued: claims["iat"].as_i64()?,
            expires: claims["exp"].as_i64()?,
        })
    }

    pub(super) fn read(path: &Path) -> Result<Option<Self>> {
        match fs::read_to_string(path) {
            Ok(text) => match Self::parse(&text) {
                Some(credential) => Ok(Some(credential)),
                None => bail!(
                    "{} is not a credential of `zoneward join`: use another --data-dir, or remove the file",
                    path.display()
                ),
            },
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error).with_context(|| format!("reading {}", path.display())),
        }
    }
}

/// Written as JSON, which is YAML.
pub(super) fn kubeconfig(server: &str, authority: &str, user: &str, token: &str) -> String {
    let config = json!({
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "zoneward", "cluster": {
            "server": server, "certificate-authority-data": authority, "tls-server-name": SERVER_NAME,
        }}],
        "users": [{"name": user, "user": {"token": token}}],
        "contexts": [{"name": "zoneward", "context": {"cluster": "zoneward", "user": user}}],
        "current-context": "zoneward",
    });
    format!("{config:#}\n")
}

/// The stored credential, renewed if the API answers; or a new one, by the token of the flags. A URL replaces the stored
/// one: the API may have moved, and its authority is known.
pub(super) async fn obtain(
    path: &Path,
    url: Option<&str>,
    flags: Option<&JoinFlags>,
    clock: &Clock,
) -> Result<NodeCredential> {
    let Some(mut stored) = NodeCredential::read(path)? else {
        let Some(flags) = flags else {
            bail!(
                "{} does not exist: join with the command that `zoneward token create --node NAME` prints on the machine \
                 of the API",
                path.display()
            );
        };
        return join(path, flags, clock).await;
    };
    if let Some(url) = url {
        stored.server = split(url)?.0;
    }
    let user = format!("system:node:{}", stored.node);
    let text = kubeconfig(&stored.server, &stored.authority, &user, &stored.token);
    write_private(path, text.as_bytes()).with_context(|| format!("writing {}", path.display()))?;
    let client = cluster::connect_with_kubeconfig(&text, clock).await?;
    let renewed = tokio::time::timeout(START_TIMEOUT, request(&client)).await;
    match (renewed, flags) {
        (Ok(Ok(answer)), _) => {
            info!(node = stored.node, "joined before; a token is not used");
            store(path, &stored.server, &stored.authority, &answer)
        }
        (Ok(Err(Error::Api(status))), Some(flags)) if status.code == 401 => {
            info!(reason = status.message, "the stored credential is not valid; joining with the token");
            join(path, flags, clock).await
        }
        (Ok(Err(Error::Api(status))), None) if status.code == 401 => {
            bail!(
                "the API at {} refuses the credential in {}: {}",
                stored.server,
                path.display(),
                status.message
            )
        }
        _ => {
            warn!(server = stored.server, "the API does not answer; going on with the stored credential");
            Ok(stored)
        }
    }
}

/// Exchanges the credential of a client, or its token, for a new credential.
async fn request(client: &Client) -> kube::Result<Value> {
    let request = http::Request::post(PATH).body(Vec::new()).map_err(Error::HttpError)?;
    client.request(request).await
}

fn store(path: &Path, server: &str, authority: &str, answer: &Value) -> Result<NodeCredential> {
    let text = |name: &str| answer[name].as_str().with_context(|| format!("the API's answer has no {name}"));
    let user = format!("system:node:{}", text("node")?);
    let text = kubeconfig(server, authority, &user, text("token")?);
    write_private(path, text.as_bytes()).with_context(|| format!("writing {}", path.display()))?;
    NodeCredential::parse(&text).context("the API's answer is not a credential")
}

async fn join(path: &Path, flags: &JoinFlags, clock: &Clock) -> Result<NodeCredential> {
    let (server, host) = split(&flags.server)?;
    if JoinToken::parse(&flags.token).is_none() {
        bail!(
            "--token: expected ID.SECRET as `zoneward token create` prints it, 6 and 16 lower case letters or digits"
        );
    }
    let hash = flags.ca_hash.to_ascii_lowercase();
    let digits = hash.strip_prefix("sha256:").unwrap_or_default();
    if digits.len() != 64 || !digits.bytes().all(|byte| byte.is_ascii_hexdigit()) {
        bail!("--ca-hash: expected sha256: and 64 hexadecimal digits, as `zoneward token create` prints it");
    }
    let authority = authority_discovery::authority(&host, &hash).await?;
    let authority = STANDARD.encode(certificate_pem(&authority));
    let client =
        cluster::connect_with_kubeconfig(&kubeconfig(&server, &authority, "token", &flags.token), clock)
            .await?;
    match request(&client).await {
        Ok(answer) => store(path, &server, &authority, &answer),
        Err(Error::Api(status)) if status.code == 401 => {
            let reason = status.message.strip_prefix("Unauthorized: the token ");
            let reason =
                reason.map_or("it is unknown, or was used".to_owned(), |rest| format!("the token {rest}"));
            bail!(
                "the API at {server} refuses the token: {reason}. A token is valid once, and until its --ttl: create \
                 another with `zoneward token create --node NAME` on the machine of the API"
            )
        }
        Err(Error::Api(status)) => bail!("the API at {server}: {}", status.message),
        Err(error) => Err(error).with_context(|| format!("the API at {server}")),
    }
}

/// The URL without a path, and its host and port.
fn split(server: &str) -> Result<(String, String)> {
    let wrong = || format!("{server}: expected a URL such as https://box-1:6443");
    let host = server.strip_prefix("https://").map(|rest| rest.trim_end_matches('/'));
    let host = host.filter(|host| !host.is_empty() && !host.contains('/')).with_context(wrong)?;
    let has_port = host.rsplit_once(':').is_some_and(|(_, port)| port.parse::<u16>().is_ok());
    let host = if has_port { host.to_owned() } else { format!("{host}:{DEFAULT_PORT}") };
    Ok((format!("https://{host}"), host))
}

/// Renews the stored credential in time, until `stop` turns true.
pub(super) async fn keep(client: Client, path: PathBuf, clock: Clock, mut stop: watch::Receiver<bool>) {
    let mut is_failing = false;
    loop {
        let stored = NodeCredential::read(&path).ok().flatten();
        let now = clock.timestamp().as_second();
        let pause = stored
            .as_ref()
            .map_or(CHECK_PERIOD, |stored| renewal_pause(stored.issued, stored.expires, now, is_failing));
        if tokio::time::timeout(Duration::from_secs(pause), stop.wait_for(|stop| *stop)).await.is_ok() {
            return;
        }
        let Some(stored) = stored else { continue };
        if clock.timestamp().as_second() < renewal_time(stored.issued, stored.expires) {
            continue;
        }
        let renewed = tokio::select! {
            biased;
            _ = stop.wait_for(|stop| *stop) => return,
            renewed = renew(&client, &path, &stored) => renewed,
        };
        match renewed {
            Ok(()) => {
                is_failing = false;
                info!("credential renewed");
            }
            Err(why) if !is_failing => {
                is_failing = true;
                let ends = jiff::Timestamp::from_second(stored.expires).unwrap_or_default();
                error!(error = why, %ends, "the credential was not renewed; retrying");
            }
            Err(_) => {}
        }
    }
}

/// Exchanges the stored credential for a newer one.
async fn renew(client: &Client, path: &Path, stored: &NodeCredential) -> Result<(), String> {
    match tokio::time::timeout(RENEWAL_TIMEOUT, request(client)).await {
        Ok(Ok(answer)) => store(path, &stored.server, &stored.authority, &answer)
            .map(drop)
            .map_err(|error| format!("{error:#}")),
        Ok(Err(Error::Api(status))) => Err(status.message.clone()),
        Ok(Err(error)) => Err(error.to_string()),
        Err(_) => Err("the API does not answer".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_get_the_port_of_the_api() {
        for (given, wanted) in [
            ("https://box-1:6443", "box-1:6443"),
            ("https://box-1/", "box-1:6443"),
            ("https://10.0.0.1:443", "10.0.0.1:443"),
            ("https://[fd00::1]:6443/", "[fd00::1]:6443"),
            ("https://[fd00::1]", "[fd00::1]:6443"),
        ] {
            let wanted = (format!("https://{wanted}"), wanted.to_owned());
            assert_eq!(split(given).unwrap(), wanted, "{given}");
        }
        for wrong in ["box-1:6443", "http://box-1", "https://", "https://box-1/api"] {
            assert!(split(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_stored_credential_is_read_back() {
        let claims = json!({"sub": "system:node:box-2", "iat": 10, "exp": 40});
        let token = format!("h.{}.s", URL_SAFE_NO_PAD.encode(claims.to_string()));
        let text = kubeconfig("https://box-1:6443", "QQ==", "system:node:box-2", &token);
        let read = NodeCredential::parse(&text).unwrap();
        assert_eq!((read.node.as_str(), read.server.as_str()), ("box-2", "https://box-1:6443"));
        assert_eq!((read.authority.as_str(), read.issued, read.expires), ("QQ==", 10, 40));
        assert!(NodeCredential::parse("{}").is_none());
    }
}
