//! The dashboard in Chromium: every page loads without a complaint of the console or the policy, fits a phone, sorts,
//! searches, updates itself, copies, and works without JavaScript. Pictures of the pages for docs/ are made with
//! `ZONEWARD_PICTURES=docs/images cargo nextest run -p zoneward -E 'test(/^dashboard::.*pages/)'`.

mod browser;
mod requests;
mod world;

use crate::started;
use std::path::{Path, PathBuf};

use browser::Browser;
use fixtures::eventually;
use serde_json::json;
use world::World;

const PAGES: &[(&str, &str)] = &[
    ("overview", "/"),
    ("services", "/services"),
    ("service", "/services/shop/cart"),
    ("nodes", "/nodes"),
    ("routes", "/routes"),
    ("what-if", "/what-if?service=shop%2Fsearch&mechanism=Spill&zone=eu-west-1b"),
];
const ROWS: &str =
    "[...document.querySelectorAll('#services tbody tr')].map((row) => row.cells[0].innerText).join(' ')";
const LIVE: &str = "document.getElementById('live').textContent === 'live'";

/// A world whose Services are all evaluated.
fn evaluated(allow_apply: bool) -> World {
    let world = World::start(allow_apply);
    eventually("all Services are evaluated", || {
        let answer = requests::get(world.address, "/api/status");
        // The Service of the API itself has no endpoints.
        answer.contains("\"name\":\"web-v2\"") && answer.matches("\"planned\":null").count() == 1
    });
    world
}

/// Where pictures go: for the documentation, or to look at.
fn pictures(for_docs: Option<&std::ffi::OsStr>) -> PathBuf {
    let folder = match for_docs {
        Some(folder) => Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(folder),
        None => Path::new(env!("CARGO_TARGET_TMPDIR")).join("dashboard-pictures"),
    };
    std::fs::create_dir_all(&folder).unwrap();
    folder
}

#[test]
fn pages_load_fit_phones_and_screens_in_light_and_dark_and_complain_about_nothing() {
    let world = evaluated(false);
    let mut browser = Browser::start("dashboard-pages");
    let for_docs = std::env::var_os("ZONEWARD_PICTURES");
    let folder = pictures(for_docs.as_deref());
    for (name, path) in PAGES {
        let mut papers = Vec::new();
        for (width, dark) in [(1440, false), (390, false), (1440, true), (800, true), (1024, false)] {
            browser.screen(width, dark);
            browser.open(&world.url(path));
            browser.until(LIVE);
            browser.until("[...document.querySelectorAll('.plot[data-series]')].every((plot) => plot.querySelector('canvas'))");
            let wide = browser.eval("document.documentElement.scrollWidth");
            assert_eq!(wide, width, "{name} on a screen of {width} px");
            papers.push(browser.text("getComputedStyle(document.body).backgroundColor"));
            let look = match (dark, width) {
                (true, 1440) => "dark",
                (false, 390) => "phone",
                (false, 1440) => "light",
                _ => continue,
            };
            match &for_docs {
                None => browser.picture(&folder.join(format!("dashboard-{name}-{look}.png")), true),
                Some(_) if look == "light" || (look, *name) == ("dark", "overview") => {
                    browser.picture(&folder.join(format!("dashboard-{name}-{look}.webp")), false);
                }
                Some(_) => {}
            }
        }
        assert_eq!(papers[0], papers[1]);
        assert_ne!(papers[0], papers[2], "{name} is not dark");
        assert_eq!(browser.complaints(), Vec::<String>::new(), "{name}");
    }
    // The same components as a file.
    let answer = requests::get(world.address, "/api/status");
    let report = serde_json::from_str(answer.split("\r\n\r\n").nth(1).unwrap()).unwrap();
    let file = Path::new(env!("CARGO_TARGET_TMPDIR")).join("status.html");
    std::fs::write(&file, insight::pages::status_file(&report)).unwrap();
    for width in [390, 1440] {
        browser.screen(width, false);
        browser.open(&format!("file://{}", file.canonicalize().unwrap().display()));
        assert_eq!(browser.eval("document.documentElement.scrollWidth"), width);
    }
    assert!(browser.text("document.body.innerText").contains("shop/cart"));
    assert_eq!(browser.complaints(), Vec::<String>::new());
}

#[test]
fn services_are_sorted_and_searched_without_a_reload_and_by_keyboard() {
    let world = evaluated(false);
    let mut browser = Browser::start("dashboard-sort");
    browser.screen(1440, false);
    browser.open(&world.url("/services"));
    browser.until(LIVE);
    browser.eval("window.stayed = true");
    browser.eval(
        "[...document.querySelectorAll('th a')].find((link) => link.innerText.startsWith('Service')).click()",
    );
    browser.until("location.search === '?sort=name'");
    let names = "[...document.querySelectorAll('#services tbody tr')].map((row) => row.cells[0].innerText)";
    browser.until(&format!(
        "{names}.length > 7 && {names}.every((name, at, all) => !at || all[at - 1] <= name)"
    ));
    assert_eq!(browser.text("document.querySelector('th[aria-sort]').innerText.trim()"), "Service \u{2191}");
    browser.eval(
        "[...document.querySelectorAll('th a')].find((link) => link.innerText.startsWith('Service')).click()",
    );
    browser.until("location.search === '?sort=name&reverse=1'");
    // The key / leads to the search.
    browser.press("/");
    browser.until("document.activeElement.id === 'q'");
    browser.type_text("search");
    browser.until(&format!("{ROWS} === 'shop/search not honored' || {ROWS} === 'shop/search'"));
    assert_eq!(browser.eval("document.activeElement.id"), "q");
    assert!(browser.text("location.search").contains("q=search"));
    browser.eval("history.back()");
    browser.until(
        "location.search === '?sort=name' && document.querySelectorAll('#services tbody tr').length > 7",
    );
    // Every control is reached by Tab.
    browser.open(&world.url("/services"));
    let controls = "[...document.querySelectorAll('a, button:not([hidden]), input, select, summary')]";
    assert_eq!(browser.eval(&format!("{controls}.every((control) => control.tabIndex >= 0)")), json!(true));
    assert_eq!(browser.complaints(), Vec::<String>::new());
}

#[test]
fn a_page_follows_changes_without_a_reload_and_keeps_what_is_open() {
    let world = evaluated(true);
    let mut browser = Browser::start("dashboard-live");
    browser.screen(1440, false);
    browser.open(&world.url("/services/shop/cart"));
    browser.until(LIVE);
    browser.eval("window.stayed = true");
    browser.eval("document.querySelector('#why details').open = true");
    browser.eval("document.querySelector('input[name=token]').focus()");
    browser.type_text("typed");
    browser.eval("document.activeElement.blur()");
    let measured =
        "document.querySelector('#flows td.own').innerText.split('\\n')[0].replace('\\u00a0', ' ')";
    assert_eq!(browser.text(measured), "34 %");
    world.feed_in_zone(60);
    browser.until(&format!("{measured} === '99 %'"));
    world.send(
        "PATCH",
        "/api/v1/namespaces/shop/services/cart",
        &json!({"spec": {"trafficDistribution": "PreferSameZone"}}),
    );
    browser.until("document.querySelector('#figures .value').innerText === 'PreferSameZone'");
    browser.until("document.querySelector('#flows td.own').innerText.includes('plan 100\\u00a0%')");
    assert_eq!(
        browser.eval("window.stayed === true && document.querySelector('#why details').open"),
        json!(true)
    );
    assert_eq!(browser.text("document.querySelector('input[name=token]').value"), "typed");
    assert_eq!(browser.complaints(), Vec::<String>::new());
}

#[test]
fn the_fix_is_copied_and_a_what_if_is_compared() {
    let world = evaluated(false);
    let mut browser = Browser::start("dashboard-copy");
    browser.screen(1440, false);
    browser.open(&world.url("/services/shop/cart"));
    browser.until(LIVE);
    let permissions = json!(["clipboardReadWrite", "clipboardSanitizedWrite"]);
    let origin = world.url("");
    browser.call("Browser.grantPermissions", json!({"permissions": permissions, "origin": origin}));
    let shown = browser.text("document.querySelector('#fix code').innerText");
    assert!(shown.starts_with("kubectl patch service cart -n shop"), "{shown}");
    browser.eval("document.querySelector('#fix [data-copy]').click()");
    browser.until("document.querySelector('#fix [data-copy]').innerText === 'Copied'");
    assert_eq!(browser.text("navigator.clipboard.readText()"), shown);

    browser.open(&world.url("/what-if?service=shop%2Fsearch"));
    browser.until(LIVE);
    browser.eval("window.stayed = true");
    browser.eval("document.querySelector('select[name=mechanism]').value = 'Spill'");
    browser.eval("document.querySelector('select[name=add]').value = 'eu-west-1b'");
    browser.eval("document.querySelector('input[name=replicas]').value = '3'");
    browser.eval("document.querySelector('main form').requestSubmit()");
    browser.until(
        "document.getElementById('outcome').innerText.includes('Endpoints in eu-west-1b\\t1\\t4\\t+3')",
    );
    assert_eq!(browser.eval("window.stayed"), json!(true));
    assert!(
        browser
            .text("document.querySelector('#outcome code').innerText")
            .contains("traffic-distribution=Spill")
    );
    assert_eq!(browser.complaints(), Vec::<String>::new());
}

#[test]
fn without_javascript_pages_reload_sort_and_search() {
    let world = evaluated(false);
    let mut browser = Browser::start("dashboard-plain");
    browser.screen(390, false);
    browser.javascript(false);
    for (name, path) in PAGES {
        browser.open(&world.url(path));
        assert_eq!(
            browser.eval("document.querySelector('noscript meta[http-equiv=refresh]').content"),
            "30",
            "{name}"
        );
        assert_eq!(browser.eval("document.documentElement.scrollWidth"), 390, "{name}");
        assert_eq!(
            browser.eval("document.querySelectorAll('button[data-copy]:not([hidden])').length"),
            0,
            "{name}"
        );
    }
    browser.open(&world.url("/services/shop/cart"));
    assert_eq!(browser.eval("!!document.querySelector('.plot svg path')"), json!(true));
    browser.open(&world.url("/services"));
    browser.eval("document.querySelector('#q').value = 'web-v'");
    browser.eval("document.querySelector('select[name=sort]').value = 'name'");
    browser.eval("document.querySelector('main form').requestSubmit()");
    browser.until(&format!("{ROWS} === 'shop/web-v1 shop/web-v2'"));
    assert_eq!(browser.complaints(), Vec::<String>::new());
}
