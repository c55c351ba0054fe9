//! Names that may be meant by a misspelt one.

/// At most this many are proposed.
const MOST: usize = 3;
/// This many letters may differ.
const FAR: usize = 2;

/// The names that are nearest to a wrong one, or begin nearly so, the nearest first.
#[must_use]
pub fn near<'n>(wrong: &str, names: impl Iterator<Item = &'n str>) -> Vec<&'n str> {
    let far = FAR.min(wrong.len() / 2);
    let mut found: Vec<(usize, &str)> = names
        .filter_map(|name| {
            let beginning = name
                .get(..wrong.len())
                .map(|name| distance(wrong, name) + 1);
            let whole = distance(wrong, name);
            let least = beginning.map_or(whole, |beginning| beginning.min(whole));
            (least <= far).then_some((least, name))
        })
        .collect();
    found.sort_by_key(|&(distance, name)| (distance, name.len(), name));
    found.truncate(MOST);
    found.into_iter().map(|(_, name)| name).collect()
}

/// How many letters must be replaced, inserted, left out or exchanged with the next to make one text of another.
fn distance(one: &str, other: &str) -> usize {
    let (one, other) = (one.as_bytes(), other.as_bytes());
    let mut rows: Vec<Vec<usize>> = vec![(0..=other.len()).collect()];
    for i in 1..=one.len() {
        let mut row = vec![i];
        for j in 1..=other.len() {
            let differs = usize::from(one[i - 1] != other[j - 1]);
            let mut least = (rows[i - 1][j - 1] + differs)
                .min(rows[i - 1][j] + 1)
                .min(row[j - 1] + 1);
            let swapped =
                i > 1 && j > 1 && one[i - 1] == other[j - 2] && one[i - 2] == other[j - 1];
            if swapped {
                least = least.min(rows[i - 2][j - 2] + 1);
            }
            row.push(least);
        }
        rows.push(row);
    }
    rows[one.len()][other.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_nearest_come_first() {
        let names = ["close", "open", "openat", "openat2", "read", "fsopen"];
        let near = |wrong: &str| near(wrong, names.into_iter());
        assert_eq!(near("opne"), ["open", "openat", "openat2"]);
        assert_eq!(near("raed"), ["read"]);
        assert_eq!(near("opnat"), ["openat", "openat2"]);
        assert!(near("x").is_empty() && near("").is_empty() && near("unrelated").is_empty());
        assert_eq!(distance("", "ab"), 2);
        assert_eq!(distance("ab", "ba"), 1);
    }
}
