//! What follows the `?` of a request: options of lists, watches, writes and deletes, with the meaning that
//! resourceVersion has in each.
//!
//! ```text
//! list   no version            the newest
//!        0, or NotOlderThan N  anything from N on; the newest serves
//!        Exact N               exactly N, or 410 if it is no longer kept
//! watch  no version            the newest objects as ADDED, then changes
//!        0                     the same
//!        N                     changes after N, or 410 if they are no longer kept
//! ```

use std::collections::BTreeMap;

use crate::kinds::Kind;
use crate::selector::{Fields, Labels};
use plan::validate::FieldErrorType;

use crate::status::{Cause, Failure};

/// The pairs of a query, decoded.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Query(BTreeMap<String, String>);

/// Options of a list or watch.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ListOptions {
    /// Which labels to have.
    pub labels: Labels,
    /// Which fields to have.
    pub fields: Fields,
    /// How many objects at most; 0: all.
    pub limit: usize,
    /// Where an earlier answer stopped.
    pub continue_token: Option<String>,
    /// Which version to answer with.
    pub version: ListVersion,
    /// Whether changes are wanted.
    pub watch: bool,
    /// From where on changes are wanted.
    pub watch_from: Option<u64>,
    /// Whether bookmarks are wanted.
    pub bookmarks: bool,
    /// Whether the watch begins with all objects and a bookmark after them.
    pub initial_events: bool,
    /// After how many seconds a watch ends.
    pub timeout_seconds: Option<u64>,
}

/// Which version of the store a list shows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ListVersion {
    /// The newest.
    #[default]
    Newest,
    /// Any from this one on.
    NotOlderThan(u64),
    /// This very one.
    Exact(u64),
}

/// What to do about fields that the schema does not know, and about fields that stand twice.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum FieldValidation {
    /// Drop them.
    Ignore,
    /// Drop them and warn.
    #[default]
    Warn,
    /// Refuse the object.
    Strict,
}

/// Options of a write.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WriteOptions {
    /// Do everything but store it.
    pub dry_run: bool,
    /// What to do about unknown fields.
    pub field_validation: FieldValidation,
}

impl Query {
    /// Reads `a=b&c=d`; of a key that stands twice the first counts.
    pub fn parse(text: &str) -> Self {
        let mut pairs = BTreeMap::new();
        for pair in text.split('&').filter(|pair| !pair.is_empty()) {
            let (key, value) = pair.split_once('=').unwrap_or((pair, ""));
            pairs.entry(decode(key)).or_insert_with(|| decode(value));
        }
        Self(pairs)
    }

    /// The value of a key, unless it is empty.
    pub fn value(&self, key: &str) -> Option<&str> {
        self.0.get(key).map(String::as_str).filter(|value| !value.is_empty())
    }

    /// Whether changes are asked for.
    pub fn is_watch(&self) -> bool {
        self.flag("watch")
    }

    /// Whether something is asked for that one asks for or not.
    pub fn flag(&self, key: &str) -> bool {
        match self.0.get(key).map(String::as_str) {
            None => false,
            // As API servers have it: what does not deny affirms.
            Some(word) => !matches!(word.to_ascii_lowercase().as_str(), "0" | "false"),
        }
    }

    /// A whole number; one below 0 is as if it were not there.
    fn number(&self, key: &str) -> Result<Option<u64>, Failure> {
        let read = |value: &str| {
            let wrong = || Failure::bad_request(format!("{key}={value}: write a whole number"));
            value.parse::<i64>().map_err(|_| wrong())
        };
        let number = self.value(key).map(read).transpose()?;
        Ok(number.and_then(|number| u64::try_from(number).ok()))
    }

    fn resource_version(&self) -> Result<Option<u64>, Failure> {
        let read = |value: &str| {
            let message =
                format!("Invalid value: {value:?}: resourceVersion: it is a number that this server gave");
            value.parse().map_err(|_| Failure::bad_request(message))
        };
        self.value("resourceVersion").map(read).transpose()
    }

    /// The options of a list or watch of a kind.
    pub fn list_options(&self, kind: &Kind) -> Result<ListOptions, Failure> {
        let labels = self.value("labelSelector").map_or(Ok(Labels::default()), Labels::parse);
        let fields =
            self.value("fieldSelector").map_or(Ok(Fields::default()), |text| Fields::parse(text, kind));
        let limit = self.number("limit")?.unwrap_or(0);
        self.check_together()?;
        let options = ListOptions {
            labels: labels.map_err(Failure::bad_request)?,
            fields: fields.map_err(Failure::bad_request)?,
            limit: usize::try_from(limit).unwrap_or(usize::MAX),
            continue_token: self.value("continue").map(str::to_owned),
            version: self.list_version(limit > 0)?,
            watch: self.flag("watch"),
            watch_from: self.resource_version()?,
            bookmarks: self.flag("allowWatchBookmarks"),
            initial_events: self.flag("sendInitialEvents"),
            timeout_seconds: self.number("timeoutSeconds")?,
        };
        if options.continue_token.is_some() && self.value("resourceVersion").is_some_and(|v| v != "0") {
            return Err(Failure::bad_request(
                "specifying resource version is not allowed when using continue",
            ));
        }
        Ok(options)
    }

    fn list_version(&self, limited: bool) -> Result<ListVersion, Failure> {
        let version = self.resource_version()?;
        match (self.value("resourceVersionMatch"), version) {
            (None, None) => Ok(ListVersion::Newest),
            // With a limit a version without a word has always meant that very one, 0 apart.
            (None, Some(version)) if version > 0 && limited => Ok(ListVersion::Exact(version)),
            (Some("Exact"), Some(version)) => Ok(ListVersion::Exact(version)),
            (_, Some(version)) => Ok(ListVersion::NotOlderThan(version)),
            // With sendInitialEvents no version is the newest.
            (Some(_), None) => Ok(ListVersion::Newest),
        }
    }

    /// Options that do not go together, as API servers see it.
    fn check_together(&self) -> Result<(), Failure> {
        let wanted = self.value("resourceVersionMatch");
        let mut causes = match (self.flag("watch"), self.0.contains_key("sendInitialEvents")) {
            (true, events) => check_watch(wanted, events, self.value("continue").is_some()),
            (false, _) => self.check_list(wanted),
        };
        if !self.flag("watch") && self.0.contains_key("sendInitialEvents") {
            causes.push(Cause::new(
                FieldErrorType::Forbidden,
                "sendInitialEvents",
                "goes with watch=true only",
            ));
        }
        if causes.is_empty() { Ok(()) } else { Err(Failure::invalid_options("ListOptions", &causes)) }
    }

    fn check_list(&self, wanted: Option<&str>) -> Vec<Cause> {
        let mut causes = Vec::new();
        let Some(word) = wanted else { return causes };
        let version = self.value("resourceVersion");
        if version.is_none() {
            causes.push(forbidden_match("goes with a resourceVersion only"));
        }
        if self.value("continue").is_some() {
            causes.push(forbidden_match("does not go with continue: that has its version"));
        }
        match word {
            "Exact" if version == Some("0") => {
                causes.push(forbidden_match("Exact needs a resourceVersion above 0"));
            }
            "Exact" | "NotOlderThan" => {}
            other => causes.push(unknown("resourceVersionMatch", other, &["Exact", "NotOlderThan"])),
        }
        causes
    }

    /// The options of a write, which are called differently for each verb, as `CreateOptions`.
    pub fn write_options(&self, called: &str) -> Result<WriteOptions, Failure> {
        let (dry_run, mut causes) = dry_run(self.value("dryRun"));
        let field_validation = match self.value("fieldValidation") {
            None | Some("Warn") => FieldValidation::Warn,
            Some("Ignore") => FieldValidation::Ignore,
            Some("Strict") => FieldValidation::Strict,
            Some(other) => {
                causes.push(unknown("fieldValidation", other, &["Ignore", "Strict", "Warn"]));
                FieldValidation::Warn
            }
        };
        if self.value("fieldManager").is_some_and(|name| name.len() > MAX_MANAGER) {
            let reason = format!("may not be more than {MAX_MANAGER} bytes");
            causes.push(Cause::new(FieldErrorType::TooLong, "fieldManager", reason));
        }
        if called == "PatchOptions" && self.value("force").is_some() {
            causes.push(Cause::new(FieldErrorType::Forbidden, "force", "goes with server-side apply only"));
        }
        if !causes.is_empty() {
            return Err(Failure::invalid_options(called, &causes));
        }
        Ok(WriteOptions { dry_run, field_validation })
    }
}

fn forbidden_match(reason: &str) -> Cause {
    Cause::new(FieldErrorType::Forbidden, "resourceVersionMatch", reason)
}

fn check_watch(wanted: Option<&str>, initial_events: bool, continued: bool) -> Vec<Cause> {
    let mut causes = Vec::new();
    match wanted {
        None if initial_events => {
            causes.push(forbidden_match("sendInitialEvents needs resourceVersionMatch=NotOlderThan"));
        }
        Some(_) if !initial_events => {
            causes.push(forbidden_match("goes with a watch that has sendInitialEvents only"));
        }
        _ => {}
    }
    if continued {
        // API servers lay this at the same door.
        causes.push(forbidden_match("a watch does not go with continue"));
    }
    if let Some(word) = wanted.filter(|word| *word != "NotOlderThan") {
        causes.push(unknown("resourceVersionMatch", word, &["NotOlderThan"]));
    }
    causes
}

/// The longest name of a field manager.
const MAX_MANAGER: usize = 128;

/// An option with a word that is not known.
pub fn unknown(option: &str, word: &str, known: &[&str]) -> Cause {
    let known: Vec<String> = known.iter().map(|word| format!("{word:?}")).collect();
    let reason = format!("{word:?}: supported values: {}", known.join(", "));
    Cause::new(FieldErrorType::NotSupported, option, reason)
}

/// Whether `dryRun` asks for a rehearsal, and what is wrong with the words for it.
pub fn dry_run<'a>(words: impl IntoIterator<Item = &'a str>) -> (bool, Vec<Cause>) {
    let words: Vec<&str> = words.into_iter().collect();
    let strange = words.iter().find(|word| **word != "All");
    let causes = strange.map(|word| unknown("dryRun", word, &["All"]));
    (!words.is_empty(), causes.into_iter().collect())
}

/// Percent-decoding; what is not well encoded stays as it is.
pub fn decode(text: &str) -> String {
    let bytes = text.as_bytes();
    let mut decoded = Vec::with_capacity(bytes.len());
    let mut at = 0;
    while let Some(&byte) = bytes.get(at) {
        let hex = bytes.get(at + 1..at + 3).and_then(|pair| std::str::from_utf8(pair).ok());
        let value = hex.filter(|_| byte == b'%').and_then(|pair| u8::from_str_radix(pair, 16).ok());
        match value {
            Some(value) => {
                decoded.push(value);
                at += 3;
            }
            None => {
                decoded.push(if byte == b'+' { b' ' } else { byte });
                at += 1;
            }
        }
    }
    String::from_utf8_lossy(&decoded).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kinds;

    fn options(query: &str) -> Result<ListOptions, Failure> {
        Query::parse(query).list_options(kinds::find("", "v1", "pods").unwrap())
    }

    #[test]
    fn a_version_means_what_it_means_in_kubernetes() {
        for (query, version) in [
            ("", ListVersion::Newest),
            ("resourceVersion=0", ListVersion::NotOlderThan(0)),
            ("resourceVersion=7", ListVersion::NotOlderThan(7)),
            ("resourceVersion=7&limit=5", ListVersion::Exact(7)),
            ("resourceVersion=7&resourceVersionMatch=Exact", ListVersion::Exact(7)),
            ("resourceVersion=7&resourceVersionMatch=NotOlderThan", ListVersion::NotOlderThan(7)),
        ] {
            assert_eq!(options(query).unwrap().version, version, "{query}");
        }
    }

    #[test]
    fn options_that_do_not_go_together_are_refused() {
        for (query, causes) in [
            ("resourceVersionMatch=Exact", "resourceVersionMatch Forbidden"),
            ("resourceVersion=0&resourceVersionMatch=Exact", "resourceVersionMatch Forbidden"),
            ("resourceVersion=1&resourceVersionMatch=Near", "resourceVersionMatch NotSupported"),
            (
                "resourceVersionMatch=NotOlderThan&continue=a",
                "resourceVersionMatch Forbidden, resourceVersionMatch Forbidden",
            ),
            ("sendInitialEvents=true", "sendInitialEvents Forbidden"),
            ("watch=true&sendInitialEvents=true", "resourceVersionMatch Forbidden"),
            (
                "watch=true&resourceVersion=1&resourceVersionMatch=Exact",
                "resourceVersionMatch Forbidden, resourceVersionMatch NotSupported",
            ),
        ] {
            let failure = options(query).unwrap_err();
            let found: Vec<String> = failure.details["causes"]
                .as_array()
                .unwrap()
                .iter()
                .map(|cause| {
                    format!(
                        "{} {}",
                        cause["field"].as_str().unwrap(),
                        cause["reason"].as_str().unwrap().trim_start_matches("FieldValue")
                    )
                })
                .collect();
            assert_eq!((failure.code, found.join(", ").as_str()), (422, causes), "{query}");
            assert_eq!(failure.details["kind"], "ListOptions");
            assert_eq!(failure.details["group"], "meta.k8s.io");
        }
        assert_eq!(options("limit=-1&resourceVersion=7").unwrap().version, ListVersion::NotOlderThan(7));
        assert!(options("watch=maybe").unwrap().watch);
        for query in [
            "resourceVersion=x",
            "limit=many",
            "labelSelector=a+in+(b",
            "fieldSelector=spec.color=red",
            "continue=abc&resourceVersion=5",
        ] {
            assert_eq!(options(query).unwrap_err().code, 400, "{query}");
        }
    }

    #[test]
    fn pairs_are_decoded() {
        let query = Query::parse("labelSelector=app%20in+%28a%2Cb%29&watch=1&x=%zz%");
        assert_eq!(query.value("labelSelector"), Some("app in (a,b)"));
        assert_eq!(query.value("x"), Some("%zz%"));
    }
}
