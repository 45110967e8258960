//! The block in which macOS keeps the arguments and the variables of a process.
//!
//! ```text
//!  argc (native int) │ path \0 │ \0 … │ argument \0, argc times │ NAME=value \0 … │ \0
//! ```

/// The arguments, the program's name first.
pub(crate) fn arguments(block: &[u8]) -> Option<Vec<String>> {
    let (count, rest) = count_and_texts(block)?;
    let words: Vec<_> = rest.split(|byte| *byte == 0).take(count).collect();
    (words.len() == count)
        .then(|| words.into_iter().map(|word| String::from_utf8_lossy(word).into_owned()).collect())
}

/// The variables, each with a zero at its end.
pub(crate) fn variables(block: &[u8]) -> Option<&[u8]> {
    let (count, mut rest) = count_and_texts(block)?;
    for _ in 0..count {
        rest = after_zero(rest)?;
    }
    // An empty one ends the list; beyond it stands what is none of the program's.
    let end = rest.windows(2).position(|pair| pair == [0, 0]).map_or(rest.len(), |end| end + 1);
    rest.get(..end)
}

/// How many arguments there are, and what begins with them.
fn count_and_texts(block: &[u8]) -> Option<(usize, &[u8])> {
    let (count, rest) = block.split_first_chunk()?;
    let count = usize::try_from(i32::from_ne_bytes(*count)).ok()?;
    let rest = after_zero(rest)?;
    let padding = rest.iter().take_while(|byte| **byte == 0).count();
    Some((count, rest.get(padding..)?))
}

fn after_zero(bytes: &[u8]) -> Option<&[u8]> {
    let zero = bytes.iter().position(|byte| *byte == 0)?;
    bytes.get(zero + 1..)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn block(count: i32, texts: &[u8]) -> Vec<u8> {
        [&count.to_ne_bytes(), texts].concat()
    }

    #[test]
    fn the_variables_follow_the_arguments() {
        let whole = block(2, b"/bin/sh\0\0\0\0sh\0A=argument\0A=1\0B=\0\0ptr_munge=\0");
        assert_eq!(arguments(&whole), Some(vec!["sh".to_owned(), "A=argument".to_owned()]));
        assert_eq!(variables(&whole), Some(&b"A=1\0B=\0"[..]));
        assert_eq!(variables(&block(1, b"/bin/sh\0sh\0A=1\0")), Some(&b"A=1\0"[..]));
    }

    #[test]
    fn a_block_that_was_cut_or_shows_nothing_has_no_variables() {
        assert_eq!(variables(&block(1, b"/bin/sh\0sh\0")), Some(&b""[..]));
        for cut in [block(2, b"/bin/sh\0sh\0"), block(-1, b"/bin/sh\0sh\0"), block(0, b"/bin"), vec![0; 3]] {
            assert_eq!(variables(&cut), None);
        }
        for cut in [block(9, b"/bin/sh\0sh\0"), block(-1, b"/bin/sh\0sh\0"), vec![0; 3]] {
            assert_eq!(arguments(&cut), None);
        }
    }
}
