//! Reports of traffic by a joined machine: HTTPS, with the credential of its Node.

use std::sync::mpsc;

use cluster::Connection;
use cluster::ledger_client::LedgerClient;
use fixtures::eventually;
use insight::ledger::{TrafficReply, TrafficReport};

use super::boxes::{Machine, machines};
use super::joined::{create_web, expose, until_reached};

#[test]
fn joined_machine_reports_its_traffic_until_its_node_is_deleted() {
    toolbox::in_own_namespaces!();
    let [first, second] = machines("ledger");
    let up = first.up_with(&["--metrics-bind-address", "10.0.0.1:10270"]);
    let joined = second.join(&first.token("box-2", &["--server", "https://10.0.0.1:6443"]));
    let web = create_web(&first);
    expose(&second);
    until_reached(&second, web, &["box-2:8080"]);
    eventually("its traffic", || first.ledger().to_string().contains("\"zone-2\""));

    // By hand, with the same credential: for itself alone, and not any more when the Node is deleted.
    let (say, heard) = mpsc::channel();
    let (go_on, wait) = mpsc::channel::<()>();
    let kubeconfig = second.kubeconfig();
    let connection = Connection { kubeconfig: Some(kubeconfig.clone()), ..Connection::default() };
    let reports = second.spawn_with_client(kubeconfig, |client| async move {
        let lease = ("kube-system".to_owned(), "zoneward-controller".to_owned());
        let mut ledger = LedgerClient::new(client.clone(), connection.clone(), lease.clone());
        let report = |reporter: &str, sequence| TrafficReport {
            reporter: reporter.to_owned(),
            start: "by-hand".to_owned(),
            sequence,
            ..TrafficReport::default()
        };
        let mut other = LedgerClient::new(client, connection, lease);
        let refused = other.send::<TrafficReply>(&report("node/box-1", 1)).await.unwrap_err();
        assert!(format!("{refused:#}").contains("403"), "{refused:#}");
        for sequence in 1..=3 {
            ledger.send::<TrafficReply>(&report("node/box-2", sequence)).await.unwrap();
        }
        say.send(()).unwrap();
        wait.recv().unwrap();
        format!("{:#}", ledger.send::<TrafficReply>(&report("node/box-2", 4)).await.unwrap_err())
    });
    heard.recv().unwrap();
    assert_eq!(first.admin("DELETE", "/api/v1/nodes/box-2", "").0, 200);
    go_on.send(()).unwrap();
    let said = reports.join().unwrap();
    assert!(said.contains("401") && said.contains("the token is not valid"), "at once: {said}");
    drop((joined, up));
    [first, second].iter().for_each(Machine::remove);
}
