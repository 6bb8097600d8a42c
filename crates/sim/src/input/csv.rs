//! Inputs as the public tool takes them: a head `name,<zone>,...`, then per line a name and `<nodes> <endpoints>` for
//! each zone. A bad line is rejected with its place, and the others count (simulator 1, "Bad input").

use super::{Input, LARGEST_COUNT, Rejection, Zone};

/// A field and where it starts, from 1.
#[derive(Debug)]
struct Field {
    text: String,
    line: usize,
    column: usize,
}

/// What was wrong, and where.
struct Mistake {
    line: usize,
    column: usize,
    reason: String,
}

/// Reads all inputs of a text, in its order.
pub fn parse(text: &str) -> (Vec<Input>, Vec<Rejection>) {
    let mut reader = Reader::new(text);
    let (mut inputs, mut rejections) = (Vec::new(), Vec::new());
    let head = match reader.next_record() {
        Some(Ok(head)) => head,
        Some(Err(mistake)) => return (inputs, vec![rejection("", mistake)]),
        None => {
            let reason = "there is no head: write name,<zone>,... in the first line".to_owned();
            return (inputs, vec![rejection("", Mistake { line: 1, column: 1, reason })]);
        }
    };
    let zones: Vec<String> = head.iter().skip(1).map(|field| field.text.trim().to_owned()).collect();
    while let Some(record) = reader.next_record() {
        let read = match record {
            Ok(fields) => input(&fields, &zones),
            Err(mistake) => Err(rejection("", mistake)),
        };
        match read {
            Ok(input) => inputs.push(input),
            Err(rejected) => rejections.push(rejected),
        }
    }
    (inputs, rejections)
}

fn rejection(id: &str, mistake: Mistake) -> Rejection {
    Rejection { id: id.to_owned(), at: Some((mistake.line, mistake.column)), reason: mistake.reason }
}

fn input(fields: &[Field], zones: &[String]) -> Result<Input, Rejection> {
    let Some((name, cells)) = fields.split_first() else {
        let reason = "the line is empty".to_owned();
        return Err(rejection("", Mistake { line: 0, column: 0, reason }));
    };
    let id = name.text.as_str();
    if cells.len() != zones.len() {
        let reason = format!(
            "{} columns, and the head has {}: write one cell \"<nodes> <endpoints>\" per zone",
            fields.len(),
            zones.len() + 1
        );
        return Err(rejection(id, Mistake { line: name.line, column: name.column, reason }));
    }
    let zone = |(cell, zone): (&Field, &String)| {
        let (nodes, endpoints) = counts(cell).map_err(|mistake| rejection(id, mistake))?;
        Ok(Zone { name: zone.clone(), nodes, endpoints })
    };
    let zones = cells.iter().zip(zones).map(zone).collect::<Result<Vec<_>, _>>()?;
    Input::new(id, zones).map_err(|rejected| Rejection { at: Some((name.line, name.column)), ..rejected })
}

/// The first two numbers of a cell; what follows them is ignored, as the public tool does.
fn counts(cell: &Field) -> Result<(u64, u64), Mistake> {
    let mut words = cell.text.split_whitespace();
    let mut next = |what: &str| match words.next() {
        Some(word) => count(word, what).map_err(|reason| {
            let offset = word.as_ptr() as usize - cell.text.as_ptr() as usize;
            let before = cell.text.get(..offset).map_or(0, |text| text.chars().count());
            Mistake { line: cell.line, column: cell.column + before, reason }
        }),
        None => {
            let reason = format!("the number of {what} is missing: write \"<nodes> <endpoints>\"");
            Err(Mistake { line: cell.line, column: cell.column, reason })
        }
    };
    Ok((next("nodes")?, next("endpoints")?))
}

fn count(word: &str, what: &str) -> Result<u64, String> {
    match word.parse::<i128>() {
        Ok(number) if number < 0 => Err(format!("{word} {what}: write a number from 0 on")),
        Ok(number) => match u64::try_from(number).ok().filter(|n| *n <= LARGEST_COUNT) {
            Some(count) => Ok(count),
            None => Err(format!("{word} {what}: {LARGEST_COUNT} is the most")),
        },
        Err(_) => Err(format!("{word:?} is no whole number of {what}")),
    }
}

/// Cuts a text into records. After a mistake it goes on with the line after the one where the record began.
struct Reader<'t> {
    text: &'t str,
    line: usize,
}

impl<'t> Reader<'t> {
    fn new(text: &'t str) -> Self {
        Self { text: text.strip_prefix('\u{feff}').unwrap_or(text), line: 1 }
    }

    /// The next record that is not an empty line.
    fn next_record(&mut self) -> Option<Result<Vec<Field>, Mistake>> {
        while let Some(rest) = self.text.strip_prefix('\n').or_else(|| self.text.strip_prefix("\r\n")) {
            self.text = rest;
            self.line += 1;
        }
        if self.text.is_empty() {
            return None;
        }
        let mut cursor = Cursor { rest: self.text, line: self.line, column: 1 };
        let record = cursor.record();
        if record.is_ok() {
            (self.text, self.line) = (cursor.rest, cursor.line);
        } else {
            let after = self.text.find('\n').map_or(self.text.len(), |at| at + 1);
            self.text = &self.text[after..];
            self.line += 1;
        }
        Some(record)
    }
}

struct Cursor<'t> {
    rest: &'t str,
    line: usize,
    column: usize,
}

impl Cursor<'_> {
    fn peek(&self) -> Option<char> {
        self.rest.chars().next()
    }

    fn advance(&mut self) -> Option<char> {
        let mut letters = self.rest.chars();
        let letter = letters.next()?;
        self.rest = letters.as_str();
        match letter {
            '\n' => (self.line, self.column) = (self.line + 1, 1),
            _ => self.column += 1,
        }
        Some(letter)
    }

    fn mistake(&self, reason: &str) -> Mistake {
        Mistake { line: self.line, column: self.column, reason: reason.to_owned() }
    }

    fn at_end_of_line(&self) -> bool {
        self.rest.is_empty() || self.rest.starts_with('\n') || self.rest.starts_with("\r\n")
    }

    fn record(&mut self) -> Result<Vec<Field>, Mistake> {
        let mut fields = Vec::new();
        loop {
            while self.peek().is_some_and(|c| c.is_whitespace()) && !self.at_end_of_line() {
                self.advance();
            }
            let (line, column) = (self.line, self.column);
            let text = if self.peek() == Some('"') { self.quoted()? } else { self.plain()? };
            fields.push(Field { text, line, column });
            if self.peek() == Some(',') {
                self.advance();
                continue;
            }
            while self.peek().is_some_and(|c| c == '\r' || c == '\n') {
                if self.advance() == Some('\n') {
                    break;
                }
            }
            return Ok(fields);
        }
    }

    fn plain(&mut self) -> Result<String, Mistake> {
        let mut text = String::new();
        while !self.at_end_of_line() && self.peek() != Some(',') {
            if self.peek() == Some('"') {
                return Err(
                    self.mistake("a quote inside a field: put the whole field in quotes and double this one")
                );
            }
            text.extend(self.advance());
        }
        Ok(text)
    }

    fn quoted(&mut self) -> Result<String, Mistake> {
        let start = self.mistake("this quote is never closed");
        self.advance();
        let mut text = String::new();
        loop {
            match self.advance() {
                None => return Err(start),
                Some('"') if self.peek() == Some('"') => text.extend(self.advance()),
                Some('"') if self.at_end_of_line() || self.peek() == Some(',') => return Ok(text),
                Some('"') => {
                    return Err(self.mistake("text after a closing quote: write a comma or end the line"));
                }
                Some(letter) => text.push(letter),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> (Vec<String>, Vec<String>) {
        let (inputs, rejections) = parse(text);
        let show = |i: &Input| {
            let zones = i.zones().iter().map(|z| format!("{} {}/{}", z.name, z.nodes, z.endpoints));
            format!("{}: {}", i.id(), zones.collect::<Vec<_>>().join(", "))
        };
        (inputs.iter().map(show).collect(), rejections.iter().map(Rejection::to_string).collect())
    }

    #[test]
    fn head_names_are_trimmed_and_zones_sorted_by_bytes() {
        let (inputs, rejected) =
            read("name, zone2 ,zone10\r\n  a b ,1 2, 3  4 99\n\n\"q,\"\"x\",\"0 0\",5 6");
        assert_eq!(inputs, ["a b : zone10 3/4, zone2 1/2", "q,\"x: zone10 5/6, zone2 0/0"]);
        assert!(rejected.is_empty(), "{rejected:?}");
    }

    #[test]
    fn bad_lines_are_named_with_line_and_column_and_the_others_count() {
        let text = "name,z1,z2\nok,1 2,3 4\nshort,1 2\nneg,1 -2,3 4\nword,1 x,1 1\none,1 2,3\nhuge,1 99999999999,1 1\nalso ok,5 5,5 5\n";
        let (inputs, rejected) = read(text);
        assert_eq!(inputs, ["ok: z1 1/2, z2 3/4", "also ok: z1 5/5, z2 5/5"]);
        let starts = [
            "line 3, column 1: short: 2 columns",
            "line 4, column 7: neg: -2 endpoints",
            "line 5, column 8: word: \"x\" is no",
            "line 6, column 9: one: the number of endpoints is missing",
            "line 7, column 8: huge: 99999999999 endpoints",
        ];
        assert_eq!(rejected.len(), starts.len());
        for (found, start) in rejected.iter().zip(starts) {
            assert!(found.starts_with(start), "{found}");
        }
    }

    #[test]
    fn an_open_quote_costs_one_line() {
        let (inputs, rejected) = read("name,z1\n\"open,1 2\nfine,3 4\n");
        assert_eq!(inputs, ["fine: z1 3/4"]);
        assert_eq!(rejected, ["line 2, column 1: this quote is never closed"]);
    }

    #[test]
    fn inputs_without_zones_or_with_one_twice_are_rejected() {
        assert!(read("name\na\n").1[0].contains("no zones"));
        assert!(read("name,z,z\na,1 1,1 1\n").1[0].contains("zone z is there twice"));
        assert!(read("").1[0].contains("there is no head"));
    }
}
