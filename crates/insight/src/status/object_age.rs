//! How old the objects are that a node serves while the API does not answer, and how old they were the last time.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// A shorter outage that needed no snapshot is not kept, such as the restart of an API server.
const MIN_SECONDS: u64 = 10;

/// Times in seconds since 1970.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ObjectAge {
    /// The objects are those of then; `None` while the API answers.
    pub known_at: Option<i64>,
    /// They come from the snapshot in a file: the API has not answered since the start.
    #[serde(default)]
    pub from_file: bool,
    #[serde(default)]
    pub last: Option<PastOutage>,
}

/// An outage of the API that is over, as a node saw it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PastOutage {
    /// How old the objects were at its end.
    pub age_seconds: u64,
    pub ended_at: i64,
    /// They came from the snapshot in a file.
    pub from_file: bool,
}

impl ObjectAge {
    /// The snapshot of a file is served.
    pub fn serves_file(&mut self, saved_at: i64) {
        (self.known_at, self.from_file) = (Some(saved_at), true);
    }

    /// Notes for how long the API has not answered, and whether it has listed its objects since the start.
    pub fn update(&mut self, unreachable_seconds: Option<u64>, is_listed: bool, now: i64) {
        let is_away = unreachable_seconds.is_some() || (self.from_file && !is_listed);
        match (self.known_at, unreachable_seconds) {
            (Some(known_at), _) if !is_away => {
                let (age_seconds, from_file) = (seconds(now, known_at), self.from_file);
                (self.known_at, self.from_file) = (None, false);
                if from_file || age_seconds >= MIN_SECONDS {
                    self.last = Some(PastOutage { age_seconds, ended_at: now, from_file });
                }
            }
            // Before the first list there is nothing that could be old.
            (None, Some(unreachable)) if is_listed => {
                self.known_at = Some(now.saturating_sub_unsigned(unreachable));
            }
            _ => {}
        }
    }

    /// The age of what is served; 0 while the API answers.
    pub fn seconds(&self, now: i64) -> u64 {
        self.known_at.map_or(0, |known_at| seconds(now, known_at))
    }
}

fn seconds(now: i64, then: i64) -> u64 {
    u64::try_from(now.saturating_sub(then)).unwrap_or(0)
}

/// As in the annotation of a Lease: seconds, end, and where the objects came from.
impl fmt::Display for PastOutage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let source = if self.from_file { "file" } else { "memory" };
        write!(f, "{} {} {source}", self.age_seconds, self.ended_at)
    }
}

impl FromStr for PastOutage {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        let mut words = text.split(' ');
        let mut next = || words.next().ok_or(());
        let (age, ended, source) = (next()?, next()?, next()?);
        Ok(Self {
            age_seconds: age.parse().map_err(drop)?,
            ended_at: ended.parse().map_err(drop)?,
            from_file: source == "file",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn objects_age_while_the_api_is_away_and_the_age_is_kept_after() {
        let mut age = ObjectAge::default();
        age.update(None, true, 100);
        assert_eq!((age.seconds(100), age.last.clone()), (0, None));
        age.update(Some(2), true, 110);
        assert_eq!((age.known_at, age.seconds(150)), (Some(108), 42));
        age.update(Some(30), true, 150);
        assert_eq!(age.known_at, Some(108), "the first failure counts");
        age.update(None, true, 170);
        let last = PastOutage { age_seconds: 62, ended_at: 170, from_file: false };
        assert_eq!((age.seconds(170), age.last.clone()), (0, Some(last.clone())));
        // A short outage does not replace it.
        age.update(Some(1), true, 200);
        age.update(None, true, 203);
        assert_eq!(age.last, Some(last));
    }

    #[test]
    fn a_snapshot_is_as_old_as_its_file_until_the_api_lists() {
        let mut age = ObjectAge::default();
        age.update(Some(5), false, 1_000);
        assert_eq!(age.known_at, None, "nothing is served yet");
        age.serves_file(400);
        age.update(Some(15), false, 1_010);
        assert_eq!(age.seconds(1_010), 610);
        // An API that answers and refuses is away as well.
        age.update(None, false, 1_020);
        assert_eq!(age.seconds(1_020), 620);
        age.update(None, true, 1_030);
        let last = PastOutage { age_seconds: 630, ended_at: 1_030, from_file: true };
        assert_eq!((age.known_at, age.from_file, age.last), (None, false, Some(last)));
    }

    #[test]
    fn a_past_outage_is_read_back() {
        let past = PastOutage { age_seconds: 62, ended_at: 170, from_file: true };
        assert_eq!(past.to_string(), "62 170 file");
        assert_eq!("62 170 file".parse(), Ok(past));
        for wrong in ["", "62", "62 170", "x 170 file"] {
            assert!(wrong.parse::<PastOutage>().is_err(), "{wrong}");
        }
    }
}
