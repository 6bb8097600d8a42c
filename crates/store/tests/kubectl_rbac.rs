//! The real kubectl for roles, bindings, service accounts and their tokens: what it creates, what it says, and what a
//! token may do.

use crate::kubectl::session;
use session::Session;

#[test]
fn create_role_and_binding_grant_what_can_i_says() {
    let kubectl = Session::new();
    assert_eq!(
        kubectl.run("create role pod-reader --verb=get,list,watch --resource=pods,pods/status"),
        "role.rbac.authorization.k8s.io/pod-reader created\n"
    );
    kubectl.run("create rolebinding r --role=pod-reader --user=jane --serviceaccount=default:bot");
    kubectl.run("create clusterrole ns --verb=get --resource=namespaces --resource-name=default");
    kubectl.run("create clusterrole url --verb=get --non-resource-url=/logs/*");
    kubectl.run("create clusterrolebinding u --clusterrole=url --group=ops");
    for (question, answer) in [
        ("list pods --as=jane", "yes\n"),
        ("list pods --as=jane -n kube-system", "no\n"),
        ("delete pods --as=jane", "no\n"),
        ("get pods --subresource=status --as=jane", "yes\n"),
        ("get pods --subresource=log --as=jane", "no\n"),
        ("list pods --as=system:serviceaccount:default:bot", "yes\n"),
        ("get /logs/x --as=x --as-group=ops", "yes\n"),
        ("get /logs --as=x --as-group=ops", "no\n"),
        ("* *", "yes\n"),
    ] {
        let (out, err, _) = kubectl.output(&format!("auth can-i {question}"), &[], "");
        assert_eq!(out, answer, "{question}: {err}");
    }
    let wide = kubectl.run("get rolebinding r -o wide");
    assert!(
        wide.contains("Role/pod-reader") && wide.contains("jane") && wide.contains("default/bot"),
        "{wide}"
    );
    assert!(kubectl.run("get role").contains("pod-reader"));
    let described = kubectl.run("describe clusterrole view");
    assert!(described.contains("endpointslices.discovery.k8s.io"), "{described}");
    let listed = kubectl.run("auth can-i --list --as=jane");
    assert!(listed.contains("pods/status") && listed.contains("selfsubjectreviews"), "{listed}");
    assert_eq!(kubectl.run("auth whoami --as=jane -o jsonpath={.status.userInfo.username}"), "jane");
}

#[test]
fn refusals_have_the_words_of_kubernetes() {
    let kubectl = Session::new();
    for (words, said) in [
        (
            "get pods --as=jane",
            "Error from server (Forbidden): pods is forbidden: User \"jane\" cannot list resource \"pods\" in API group \
             \"\" in the namespace \"default\"\n",
        ),
        (
            "get pod p --as=jane",
            "Error from server (Forbidden): pods \"p\" is forbidden: User \"jane\" cannot get resource \"pods\" in API \
             group \"\" in the namespace \"default\"\n",
        ),
        (
            "get nodes --as=jane",
            "Error from server (Forbidden): nodes is forbidden: User \"jane\" cannot list resource \"nodes\" in API group \
             \"\" at the cluster scope\n",
        ),
        (
            "get --raw /metrics --as=jane",
            "Error from server (Forbidden): forbidden: User \"jane\" cannot get path \"/metrics\"\n",
        ),
    ] {
        assert_eq!(kubectl.fails(words), said);
    }
    let reader = kubectl.as_reader();
    let said = reader.fails("get --raw /api/v1/pods --as=jane");
    assert!(said.contains(
        "users \"jane\" is forbidden: User \"zoneward-reader\" cannot impersonate resource \"users\" in API group \"\" at \
         the cluster scope"
    ));
    assert!(reader.fails("get secrets").contains("cannot list resource \"secrets\""));
    assert!(reader.run("get clusterroles").contains("cluster-admin"));
}

#[test]
fn nobody_grants_more_than_it_holds() {
    let kubectl = Session::new();
    kubectl.run("create rolebinding a --clusterrole=admin --user=jane");
    let said = kubectl.fails("create role r --verb=get --resource=nodes --as=jane");
    assert!(
        said.contains(
            "user \"jane\" (groups=[\"system:authenticated\"]) is attempting to grant RBAC permissions not \
                       currently held:\n{APIGroups:[\"\"], Resources:[\"nodes\"], Verbs:[\"get\"]}"
        ),
        "{said}"
    );
    kubectl.run("create role r --verb=get --resource=pods --as=jane");
    kubectl.run("create rolebinding b --role=r --user=joe --as=jane");
    assert!(
        kubectl
            .fails("create rolebinding c --clusterrole=cluster-admin --user=joe --as=jane")
            .contains("forbidden")
    );
    assert!(kubectl.fails("create rolebinding d --role=none --user=joe --as=jane").contains("not found"));
    let invalid = kubectl.fails_with(
        "apply -f -",
        "{apiVersion: rbac.authorization.k8s.io/v1, kind: RoleBinding, metadata: {name: b}, \
         roleRef: {apiGroup: rbac.authorization.k8s.io, kind: Role, name: other}}",
    );
    assert!(invalid.contains("cannot change roleRef"), "{invalid}");
}

#[test]
fn tokens_of_service_accounts_act_with_their_roles_and_end_with_them() {
    let kubectl = Session::new();
    kubectl.run("create serviceaccount bot");
    kubectl.run("create rolebinding bot --clusterrole=view --serviceaccount=default:bot");
    let token = kubectl.run("create token bot --duration=10m").trim().to_owned();
    assert_eq!(token.split('.').count(), 3, "{token}");
    let bot = kubectl.with_token(&token);
    assert_eq!(
        bot.run("auth whoami -o jsonpath={.status.userInfo.username}"),
        "system:serviceaccount:default:bot"
    );
    assert!(bot.output("get pods", &[], "").2);
    assert!(bot.fails("get secrets").contains("User \"system:serviceaccount:default:bot\" cannot list"));
    assert!(bot.fails("get pods -n kube-system").contains("in the namespace \"kube-system\""));
    assert!(
        kubectl
            .fails("create token bot --duration=1s")
            .contains("may not specify a duration less than 10 minutes")
    );
    let other = kubectl.run("create token bot --audience=vault").trim().to_owned();
    assert!(kubectl.with_token(&other).fails("get pods").contains("logged in"), "for another audience");
    kubectl.run("delete serviceaccount bot");
    assert!(bot.fails("get pods").contains("logged in"), "its service account is gone");
    // Every namespace has its default account.
    kubectl.run("create namespace shop");
    let found = kubectl.start("get serviceaccounts -n shop --watch").wait_for("default");
    assert!(found.contains("default"));
    kubectl.run("delete serviceaccount default -n shop");
    let found = kubectl.start("get serviceaccounts -n shop --watch").wait_for("default");
    assert!(found.contains("default"), "it comes back");
}

#[test]
fn a_namespace_leaves_no_rights_behind() {
    let kubectl = Session::new();
    kubectl.run("create namespace shop");
    kubectl.run("create rolebinding jane -n shop --clusterrole=edit --user=jane");
    let may = || kubectl.output("auth can-i get secrets -n shop --as=jane", &[], "").0;
    assert_eq!(may(), "yes\n");
    kubectl.run("delete namespace shop");
    assert_eq!(may(), "no\n");
    kubectl.run("create namespace shop");
    assert_eq!(may(), "no\n", "a namespace of the same name is another");
}

#[test]
fn aggregated_roles_follow_their_parts() {
    let kubectl = Session::new();
    kubectl.apply(
        "{apiVersion: rbac.authorization.k8s.io/v1, kind: ClusterRole, metadata: {name: extra, \
         labels: {rbac.authorization.k8s.io/aggregate-to-view: 'true'}}, \
         rules: [{apiGroups: [example.com], resources: [widgets], verbs: [get]}]}",
    );
    let has_rule = |role: &str| kubectl.run(&format!("get clusterrole {role} -o yaml")).contains("widgets");
    assert!((0..40).any(|_| has_rule("view")), "view has the rule of its new part");
    assert!(
        kubectl.run("get clusterrole edit -o yaml").contains("widgets"),
        "and so has what aggregates view"
    );
    kubectl.run("delete clusterrole extra");
    assert!((0..40).any(|_| !has_rule("view")), "and loses it");
}
