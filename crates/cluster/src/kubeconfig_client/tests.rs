//! Renewal of credentials against the embedded API over TLS, as a daemon meets it.

use std::net::SocketAddr;
use std::path::Path;
use std::time::SystemTime;

use clock::ManualTime;
use k8s_openapi::api::core::v1::Namespace;
use store::admission::service::ServiceRanges;
use store::api::{Api as EmbeddedApi, ApiLimits};
use store::bootstrap::{BootstrapOptions, bootstrap};
use store::credentials::Credentials;
use store::engine::{Engine, EngineOptions};
use store::server::ApiServer;
use tokio::net::TcpListener;
use tokio::sync::watch;

use super::*;

/// An API with TLS, and its credentials in a folder.
struct World {
    folder: PathBuf,
    credentials: Arc<Credentials>,
    _stop: watch::Sender<bool>,
}

impl Drop for World {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.folder);
    }
}

impl World {
    async fn new(name: &str) -> World {
        let folder = std::env::temp_dir().join(format!("zoneward-follow-{name}-{}", std::process::id()));
        let _ = fs::remove_dir_all(&folder);
        fs::create_dir_all(&folder).unwrap();
        let engine = Engine::open(&folder.join("store"), EngineOptions::default()).unwrap();
        let api = EmbeddedApi::new(Arc::new(engine), ServiceRanges::without_flags(), ApiLimits::default());
        let listener = TcpListener::bind(SocketAddr::from(([127, 0, 0, 1], 0))).await.unwrap();
        let listen = listener.local_addr().unwrap();
        let options = BootstrapOptions { service_cidrs: vec!["10.96.0.0/16".parse().unwrap()], listen };
        bootstrap(&api, options).await.unwrap();
        let credentials = Arc::new(Credentials::open(&folder).unwrap());
        let tls = credentials.server_config(&[listen.ip()]).unwrap();
        credentials.write_kubeconfigs(listen).unwrap();
        let (stop, stopped) = watch::channel(false);
        let server = ApiServer::new(api, credentials.clone(), stopped);
        tokio::spawn(server.serve_tls(listener, tls));
        World { folder, credentials, _stop: stop }
    }

    /// Replaces the admin's credentials: the old ones end at once, and the kubeconfig has the new ones.
    fn replace(&self) {
        for ending in ["token", "crt", "key"] {
            fs::remove_file(self.folder.join(format!("pki/admin.{ending}"))).unwrap();
        }
        assert!(self.credentials.refresh().unwrap());
    }

    /// A kubeconfig of the same server with another user.
    fn kubeconfig_with(&self, user: serde_json::Value) -> PathBuf {
        let mut config: serde_json::Value =
            serde_json::from_slice(&fs::read(self.folder.join("kubeconfig")).unwrap()).unwrap();
        config["users"][0]["user"] = user;
        let file = self.folder.join("other.kubeconfig");
        fs::write(&file, config.to_string()).unwrap();
        file
    }

    /// A kubeconfig with the token that the admin has now.
    fn token_kubeconfig(&self) -> PathBuf {
        let token = fs::read_to_string(self.folder.join("pki/admin.token")).unwrap();
        self.kubeconfig_with(serde_json::json!({"token": token.trim()}))
    }

    fn connection(&self, file: &Path) -> Connection {
        Connection { kubeconfig: Some(file.to_owned()), ..Connection::default() }
    }
}

async fn works(client: &Client) -> bool {
    kube::Api::<Namespace>::all(client.clone()).get("default").await.is_ok()
}

/// A daemon repeats what failed; the first failure makes the client read its files.
async fn works_again(client: &Client) -> bool {
    works(client).await || works(client).await
}

#[tokio::test]
async fn replaced_credentials_are_used_without_a_restart() {
    let world = World::new("replaced").await;
    let (file, old) = (world.folder.join("kubeconfig"), world.folder.join("old"));
    fs::copy(&file, &old).unwrap();
    let clock = Clock::system();
    let client = crate::connect(&world.connection(&file), &clock).await.unwrap();
    let held = crate::client_of(&world.connection(&world.token_kubeconfig()), &clock).await.unwrap().0;
    assert!(works(&client).await && works(&held).await);
    for _ in 0..3 {
        world.replace();
        assert!(works_again(&client).await);
    }
    assert!(!works_again(&held).await, "the old token has ended");
    let old = crate::connect(&world.connection(&old), &clock).await.unwrap();
    assert!(!works_again(&old).await, "the old certificate has ended");
}

#[tokio::test]
async fn request_that_is_refused_is_sent_again_with_the_new_token() {
    let world = World::new("refused").await;
    let file = world.token_kubeconfig();
    let client = crate::connect(&world.connection(&file), &Clock::system()).await.unwrap();
    assert!(works(&client).await);
    world.replace();
    world.token_kubeconfig();
    // Neither the time nor a failure of the caller is needed, for reads and writes.
    let namespace: Namespace =
        serde_json::from_value(serde_json::json!({"metadata": {"name": "made-later"}})).unwrap();
    kube::Api::all(client.clone()).create(&Default::default(), &namespace).await.unwrap();
    world.replace();
    assert!(!works(&client).await, "the file has the old token still");
    world.token_kubeconfig();
    assert!(works(&client).await);
}

#[tokio::test]
async fn watch_of_the_old_credentials_goes_on_after_a_renewal() {
    let world = World::new("watch").await;
    let file = world.folder.join("kubeconfig");
    let time = ManualTime::starting_at(SystemTime::now());
    let client = crate::connect(&world.connection(&file), &time.clock()).await.unwrap();
    let random = model::random::Random::seeded(1);
    let mut watch =
        crate::Informer::start(&client, random, [crate::WatchSpec::all(crate::ObjectKind::Namespace)]);
    while !matches!(watch.next().await, crate::InformerEvent::ListCompleted(_)) {}
    // A renewal keeps the certificate before valid; another file with the same credentials is a change, too.
    let mut text = fs::read_to_string(&file).unwrap();
    text.push('\n');
    fs::write(&file, text).unwrap();
    time.advance(PERIOD);
    assert!(works(&client).await);
    let namespace: Namespace =
        serde_json::from_value(serde_json::json!({"metadata": {"name": "made-later"}})).unwrap();
    kube::Api::all(client.clone()).create(&Default::default(), &namespace).await.unwrap();
    // The very next event: the watch neither failed nor listed again.
    match watch.next().await {
        crate::InformerEvent::Applied(_, object) => assert_eq!(object.name(), "made-later"),
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn plugin_is_asked_again_when_its_credentials_are_refused() {
    let world = World::new("plugin").await;
    let script = world.folder.join("plugin.sh");
    let token = world.folder.join("pki/admin.token");
    let program = format!(
        "#!/bin/sh\necho '{{\"apiVersion\":\"client.authentication.k8s.io/v1\",\"kind\":\"ExecCredential\",\"status\":{{\"token\":\"'$(cat {})'\"}}}}'\n",
        token.display()
    );
    fs::write(&script, program).unwrap();
    let file = world.kubeconfig_with(serde_json::json!({"exec": {
        "apiVersion": "client.authentication.k8s.io/v1", "command": "sh", "args": [script], "interactiveMode": "Never",
    }}));
    let time = ManualTime::starting_at(SystemTime::now());
    let client = crate::connect(&world.connection(&file), &time.clock()).await.unwrap();
    assert!(works(&client).await);
    world.replace();
    assert!(!works(&client).await, "the plugin was asked a moment ago");
    time.advance(PERIOD);
    assert!(works(&client).await);
}

#[tokio::test]
async fn renewed_files_are_read_in_time_and_unusable_ones_keep_the_old_credentials() {
    let world = World::new("renewed").await;
    let file = world.folder.join("copy");
    fs::copy(world.folder.join("kubeconfig"), &file).unwrap();
    let connection = world.connection(&file);
    let time = ManualTime::starting_at(SystemTime::now());
    let client = crate::connect(&connection, &time.clock()).await.unwrap();
    fs::write(&file, "half a kubec").unwrap();
    time.advance(PERIOD);
    assert!(works(&client).await, "half a file changes nothing");
    fs::remove_file(&file).unwrap();
    time.advance(PERIOD);
    assert!(works(&client).await, "nor does a missing one");
    world.replace();
    fs::copy(world.folder.join("kubeconfig"), &file).unwrap();
    time.advance(PERIOD);
    assert!(works(&client).await, "read before the request, not after its failure");
}

#[tokio::test]
async fn certificate_files_that_a_kubeconfig_names_are_followed() {
    let world = World::new("named").await;
    let named = serde_json::json!({"client-certificate": "pki/admin.crt", "client-key": "pki/admin.key"});
    let file = world.kubeconfig_with(named);
    let client = crate::connect(&world.connection(&file), &Clock::system()).await.unwrap();
    assert!(works(&client).await);
    world.replace();
    assert!(works_again(&client).await);
}
