"""Holds the bash script that takes a patch inside of a sandbox. env/patch.py fills it in and reads its answer.

Invariants:
- The script prints base64: the patch, the files that git could not read, and those that only a binary patch has byte
  for byte. Where the patch is too large, its place is empty, and its size and the new files with theirs come last.
- Paths go from git to git with a NUL behind each: a path may have any other byte.
- Programs cost more than what they do here: none starts for a list that is empty.
"""

# The script makes a repository of its own over the agent's objects and files. Not even /dev/null is used: root in a
# container may have put a file there. `refs/replace` is where a tree without its real history keeps the name of its
# base commit. `* -text` takes a file's bytes as they are, because a checkout on Linux writes them as they are.
PATCH_SCRIPT = r"""
PATH=$(command -p getconf PATH || echo /usr/bin:/bin):$PATH; export PATH
# What a signal ended is said as it is.
failed() { local status=$?; [ $status -gt 128 ] && exit $status; [ $# -eq 0 ] || exit "$1"; }
own=$(mktemp -d) || failed %(git_failed)d
trap 'rm -rf "$own"' EXIT
: > "$own/none"; exec 2> "$own/errors"
unset "${!GIT_@}"
export GIT_CONFIG_NOSYSTEM=1 GIT_CONFIG_GLOBAL="$own/none" GIT_ATTR_NOSYSTEM=1 GIT_TERMINAL_PROMPT=0
export HOME=/nonexistent LC_ALL=C
top=$PWD; base=%(base)s
real=$top/.git
[ -f "$real" ] && real=$(cd "$top" && sed -n 's/^gitdir: //p' .git | head -n 1)
real=$(cd "$top" && cd "$real" && pwd -P) || exit %(no_repository)d
[ -d "$real/objects" ] || exit %(no_repository)d
find "$top" "$real" "$real/objects/" ! -xtype f ! -xtype d ! -xtype l \
  \( ! -type l -o -name '.git*' -o -path "$real/*" \) -exec rm -f {} +
git init -q --bare "$own/git" --template= || failed %(git_failed)d
export GIT_DIR=$own/git GIT_WORK_TREE=$top
printf '[core]\n%%s\n' 'bare = false' 'autocrlf = false' 'symlinks = true' 'quotePath = true' 'fileMode = true' \
  >> "$GIT_DIR/config"
mkdir -p "$GIT_DIR/objects/info" "$GIT_DIR/refs/replace" "$GIT_DIR/info" "$own/empty"
attributes() { echo "$1" > "$GIT_DIR/info/attributes"; }
attributes '* -text'
echo "$real/objects" > "$GIT_DIR/objects/info/alternates"
for c in "$real"/refs/replace/$base; do [ -f "$c" ] && head -c 40 "$c" > "$GIT_DIR/refs/replace/$base"; done
if [ -f "$real/packed-refs" ] && [ ! -e "$GIT_DIR/refs/replace/$base" ]; then
  r=$(sed -n "s@^\([0-9a-f]*\) refs/replace/$base\$@\1@p" "$real/packed-refs" | head -n 1)
  [ -z "$r" ] || echo "$r" > "$GIT_DIR/refs/replace/$base"
fi
git read-tree "$base^{tree}" || failed %(no_base)d
: > "$own/refused"; : > "$own/new"; : > "$own/exact"
decode() { [ -z "$1" ] || printf %%s "$1" | base64 -d; }
encode() { [ ! -s "$1" ] || base64 -w0 < "$1"; }
# Of the index alone: with `git rm` a folder that is a file by now would end it all.
forget() {
  [ -s "$1" ] || return
  xargs -0 -r git --literal-pathspecs ls-files -z -- < "$1" | git update-index -z --force-remove --stdin
}
%(take)s
decode '%(left_out)s' > "$own/left_out"
forget "$own/left_out"
options=(--cached --binary --no-color --no-ext-diff --no-textconv --no-renames --ignore-submodules=all)
options+=(--src-prefix=a/ --dst-prefix=b/ "$base^{tree}")
decode '%(binary)s' > "$own/binary"
others=()
while IFS= read -r -d '' n; do others+=(":(top,exclude,literal)$n"); done < "$own/binary"
attributes '* !diff'
git diff "${options[@]}" -- . "${others[@]}" > "$own/patch" || failed %(git_failed)d
if [ -s "$own/binary" ]; then
  attributes '* -diff'
  xargs -0 git --literal-pathspecs diff "${options[@]}" -- < "$own/binary" >> "$own/patch" || failed %(git_failed)d
fi
size=$(wc -c < "$own/patch")
said() { printf :; encode "$own/refused"; printf :; encode "$own/exact"; }
[ "$size" -gt %(max_bytes)d ] || { encode "$own/patch"; said; exit 0; }
said; printf :
{ printf '%%s\0' "$size"; du -sb0 --files0-from="$own/new"; } | base64 -w0
exit 0
"""

# The five parts below put the agent's working tree into the index, one after another. A list of paths is a file in
# `$own` with a NUL behind each path.

# By its attributes a repository may let a checkout write other bytes than a commit has: CRLF in the place of LF
# (`eol=crlf`), or an object's name in the place of `$Id$` (`ident`). This part finds the files of the base commit to
# which that happens (`before`), and writes each as a checkout does (`base/`), and as the commit has it (`raw/`). The
# working tree is an empty folder here, so that git reads the attributes of the commit, not those of the agent.
_CHECK_OUT_CONVERTED = r"""
here=$PWD; cd "$own/empty"
list_converted() { git ls-files -z -- ':(top,attr:eol=crlf)' ':(top,attr:ident)'; }
check_out() {
  attributes "$1"
  GIT_WORK_TREE=$PWD git checkout-index -z --stdin --prefix="$own/$2/" < "$own/before" || failed
}
GIT_WORK_TREE=$PWD list_converted > "$own/before"
if [ -s "$own/before" ]; then
  check_out '' base
  check_out '* -text -ident' raw
  attributes '* -text'
fi
cd "$here"
"""

# git does not look into a repository inside of another one. So the `.git` of each is moved away, except those of
# submodules, which the base commit knows as such.
_OPEN_NESTED_REPOSITORIES = r"""
find . -path ./.git -prune -o -name .git -print0 > "$own/inner"
if [ -s "$own/inner" ]; then
  git ls-files -s -z | sed -z -n 's/^160000 [^\t]*\t//p' > "$own/submodules"
  while IFS= read -r -d '' n; do
    d=${n%%/.git}; d=${d#./}
    grep -Fxzq -- "$d" "$own/submodules" || mv "$n" "$own/nested.$((i=i+1))"
  done < "$own/inner"
fi
"""

# A new file that is too large is ignored: its path becomes a pattern, with a `?` for what no pattern can have. If a
# file of the base commit is too large by now, the index keeps what the commit has.
_PASS_OVER_LARGE_FILES = r"""
find_larger() { find . -path ./.git -prune -o -type f -size "+$1k" -printf '%%P\0'; }
find_larger %(max_kib)d > "$own/large"
if [ -s "$own/large" ]; then
  sed -z 's/[][*?\\ ]/\\&/g; s@^@/@' < "$own/large" | tr '\r\n\0' '??\n' > "$GIT_DIR/info/exclude"
  find_larger %(max_tracked_kib)d |
    xargs -0 -r git --literal-pathspecs ls-files -z -- | git update-index -z --skip-worktree --stdin
fi
"""

# All changes are added at once. One file that is not in the encoding of its attribute keeps git from adding any: then
# sixteen are added at a time, and the files of sixteen that git refuses one by one. After `most_refused` files none is
# tried alone any more, because a tree of such files would take too long.
_ADD_CHANGES = r"""
git ls-files -z --others --directory --no-empty-directory --exclude-standard > "$own/new"
batch=() refused=0
add() { git --literal-pathspecs add --all -- "$@" || { failed; false; }; }
add_one() {
  [ $refused -lt %(most_refused)d ] && add "$1" && return
  refused=$((refused+1)); printf '%%s\0' "$1" >> "$own/refused"
}
add_batch() {
  [ ${#batch[@]} -eq 0 ] || add "${batch[@]}" || for name in "${batch[@]}"; do add_one "$name"; done
  batch=()
}
git add --all --ignore-errors . || {
  failed
  git ls-files -z --modified --deleted --others --exclude-standard | sort -zu > "$own/changed"
  while IFS= read -r -d '' n; do
    batch+=("$n")
    [ ${#batch[@]} -lt 16 ] || add_batch
  done < "$own/changed"
  add_batch
}
# `new` says nothing of a folder that has the name of a file of the base commit.
git diff --cached --name-only --no-renames --diff-filter=A -z "$base^{tree}" -- %(droppings)s > "$own/droppings"
forget "$own/droppings"
"""

# What a checkout converted is no change of the agent's. So the index gets each such file as git itself takes it
# (--renormalize), which undoes the conversion. `settle` puts right where git would undo too much or too little:
# - A file that is just as a checkout writes it is unchanged: its entry is that of the commit.
# - Where the commit itself has a CR, git would undo more than a checkout did, so the file's bytes count.
# - Where the agent changed attributes (`rules`), a patch in text would be applied to other bytes, or leave others than
#   a checkout makes of what git took: the file's bytes count, and the patch is in binary (`exact`). The rules for a new
#   file are the old or the new ones, whichever git applies first, so that all new files are looked at.
# - In a tree that a checkout made (`as_checked_out`), other line ends alone are a change of the agent's, too. A tree
#   that no checkout made has none of its bytes.
_UNDO_CONVERSIONS = r"""
list_converted > "$own/converted"
[ ! -s "$own/before" ] || sort -zu -o "$own/converted" "$own/converted" "$own/before"
renormalize() {
  attributes ''
  git ls-files -z -- ':(attr:eol=crlf)' ':(attr:ident)' |
    xargs -0 -r git --literal-pathspecs add --renormalize -- || failed
}
# By sums: the files of `before` as a checkout writes them, as the commit has them, and as they are here.
sums() { (cd "$1" && xargs -0 -r sha1sum -z -- < "$own/before" | sort -z) > "$own/$2"; }
names() { sed -z 's/^[^ ]* .//' | sort -z; }
compare_trees() {
  mkdir -p "$own/base" "$own/raw"; sums "$own/base" of_base; sums "$own/raw" of_raw; sums "$here" of_here
  comm -z -23 "$own/of_base" "$own/of_raw" | names > "$own/other_than_raw"
  comm -z -12 "$own/of_base" "$own/of_here" | names > "$own/untouched"
  comm -z -12 "$own/other_than_raw" "$own/untouched" > "$own/as_checked_out"
}
changed() { xargs -0 -r git --literal-pathspecs diff --cached --name-only --diff-filter=AM -z "$base^{tree}" --; }
list_candidates() {
  changed < "$own/converted"
  [ -z "$rules" ] || git diff --cached --name-only --diff-filter=A -z "$base^{tree}"
  [ ! -s "$own/as_checked_out" ] || comm -z -23 "$own/other_than_raw" "$own/untouched"
}
settle() {
  [ -f "$n" ] && [ ! -L "$n" ] || return
  if [ -f "$own/base/$n" ]; then cp "$own/base/$n" "$own/old"; else git cat-file blob "$base:$n" > "$own/old"; fi
  has_cr=no; ! git cat-file blob "$base:$n" | grep -q $'\r' || has_cr=yes
  if cmp -s "$own/old" "$n" && git cat-file -e "$base:$n"; then
    git --literal-pathspecs ls-tree -z "$base" -- "$n" | git update-index -z --index-info
    return
  fi
  # What git took is right, if a checkout makes the very file of it.
  if [ $has_cr = no ] && [ -z "$rules" ] && git cat-file --filters ":$n" | cmp -s - "$n"; then return; fi
  ident=$(git check-attr ident -- "$n" | sed 's/.*: //')
  [ $has_cr = yes ] && [ -z "$rules" ] && [ "$ident" != set ] || printf '%%s\0' "$n" >> "$own/exact"
  mode=$(git --literal-pathspecs ls-files -s -z -- "$n" | tr '\0' '\n' | head -c 6)
  git update-index --cacheinfo "$mode,$(git hash-object -w --no-filters -- "$n"),$n"
}
if [ -s "$own/converted" ]; then
  renormalize
  rules=$(git diff --cached --name-only "$base^{tree}" -- ':(top,glob)**/.gitattributes')
  compare_trees
  [ -z "$rules" ] || xargs -0 -r git ls-tree -r -z "$base" -- < "$own/untouched" | git update-index -z --index-info
  list_candidates > "$own/candidates"
  sort -zu "$own/candidates" | while IFS= read -r -d '' n; do settle; done
  attributes '* -text'
fi
"""

FROM_TREE = _CHECK_OUT_CONVERTED + _OPEN_NESTED_REPOSITORIES + _PASS_OVER_LARGE_FILES + _ADD_CHANGES + _UNDO_CONVERSIONS

# This part puts a patch that the agent handed in into the index.
FROM_FILE = r"""
git apply --cached --whitespace=nowarn %(file)s || failed %(not_applied)d
"""
