"""Holds the bash script that takes a patch inside of a sandbox. env/patch.py fills it in and reads its answer.

Invariants:
- The script prints base64: the patch, the files that git could not read, and those that only a binary patch has byte
  for byte. Where the patch is too large, its place is empty, and its size and the new files with theirs come last.
- Paths go from git to git with a NUL behind each: a path may have any other byte.
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
for v in $(env | sed -n 's/^\(GIT_[A-Z_0-9]*\)=.*/\1/p'); do unset "$v"; done
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
git config core.bare false; git config core.autocrlf false; git config core.symlinks true
git config core.quotePath true; git config core.fileMode true; git config core.hooksPath "$own/none"
mkdir -p "$GIT_DIR/objects/info" "$GIT_DIR/refs/replace" "$GIT_DIR/info"
attributes() { echo "$1" > "$GIT_DIR/info/attributes"; }
attributes '* -text'
echo "$real/objects" > "$GIT_DIR/objects/info/alternates"
for c in "$real"/refs/replace/$base; do [ -f "$c" ] && head -c 40 "$c" > "$GIT_DIR/refs/replace/$base"; done
r=$(sed -n "s@^\([0-9a-f]*\) refs/replace/$base\$@\1@p" "$real/packed-refs" | head -n 1)
[ -n "$r" ] && [ ! -e "$GIT_DIR/refs/replace/$base" ] && echo "$r" > "$GIT_DIR/refs/replace/$base"
git read-tree "$base^{tree}" || failed %(no_base)d
: > "$own/refused"; : > "$own/new"; : > "$own/exact"
paths() { printf %%s "$1" | base64 -d; }
# Of the index alone: with `git rm` a folder that is a file by now would end it all.
forget() { xargs -0 -r git --literal-pathspecs ls-files -z -- | git update-index -z --force-remove --stdin; }
%(take)s
paths '%(left_out)s' | forget
options=(--cached --binary --no-color --no-ext-diff --no-textconv --no-renames --ignore-submodules=all)
options+=(--src-prefix=a/ --dst-prefix=b/ "$base^{tree}")
paths '%(binary)s' > "$own/binary"
others=()
while IFS= read -r -d '' n; do others+=(":(top,exclude,literal)$n"); done < "$own/binary"
attributes '* !diff'
git diff "${options[@]}" -- . "${others[@]}" > "$own/patch" || failed %(git_failed)d
attributes '* -diff'
xargs -0 -r git --literal-pathspecs diff "${options[@]}" -- < "$own/binary" >> "$own/patch" || failed %(git_failed)d
size=$(wc -c < "$own/patch")
said() { printf :; base64 -w0 < "$own/refused"; printf :; base64 -w0 < "$own/exact"; }
[ "$size" -gt %(max_bytes)d ] || { base64 -w0 < "$own/patch"; said; exit 0; }
said; printf :
{ printf '%%s\0' "$size"; du -sb0 --files0-from="$own/new"; } | base64 -w0
exit 0
"""

# This part puts the agent's working tree into the index. The `.git` of a nested repository is moved away, because git
# would not look into the repository otherwise.
FROM_TREE = r"""
# What a checkout of the base commit writes, where attributes of this commit make it other than the commit has it.
mkdir "$own/empty"; here=$PWD; cd "$own/empty"
converted() { git ls-files -z -- ':(top,attr:eol=crlf)' ':(top,attr:ident)'; }
GIT_WORK_TREE=$PWD converted > "$own/before"
if [ -s "$own/before" ]; then
  attributes ''
  GIT_WORK_TREE=$PWD git checkout-index -z --stdin --prefix="$own/base/" < "$own/before" || failed
  attributes '* -text -ident'
  GIT_WORK_TREE=$PWD git checkout-index -z --stdin --prefix="$own/raw/" < "$own/before" || failed
  attributes '* -text'
fi
cd "$here"
git ls-files -s -z | sed -z -n 's/^160000 [^\t]*\t//p' > "$own/submodules"
find . -path ./.git -prune -o -name .git -print0 | while IFS= read -r -d '' n; do
  d=${n%%/.git}; d=${d#./}
  grep -Fxzq -- "$d" "$own/submodules" || mv "$n" "$own/nested.$((i=i+1))"
done
find . -path ./.git -prune -o -type f -size +%(max_kib)dk -printf '%%P\0' > "$own/large"
sed -z 's/[][*?\\ ]/\\&/g; s@^@/@' < "$own/large" | tr '\r\n\0' '??\n' > "$GIT_DIR/info/exclude"
find . -path ./.git -prune -o -type f -size +%(max_tracked_kib)dk -printf '%%P\0' |
  xargs -0 -r git --literal-pathspecs ls-files -z -- | git update-index -z --skip-worktree --stdin
git ls-files -z --others --directory --no-empty-directory --exclude-standard > "$own/new"
# One file that is not in the encoding of its attribute keeps git from all: then sixteen at once, and one by one.
batch=() refused=0
add() { git --literal-pathspecs add --all -- "$@" || { failed; false; }; }
add_batch() {
  [ ${#batch[@]} -eq 0 ] || add "${batch[@]}" || for name in "${batch[@]}"; do
    [ $refused -lt %(most_refused)d ] && add "$name" || { refused=$((refused+1)); printf '%%s\0' "$name"; }
  done >> "$own/refused"
  batch=()
}
git add --all --ignore-errors . || {
  failed; git ls-files -z --modified --deleted --others --exclude-standard | sort -zu > "$own/changed"
  while IFS= read -r -d '' n; do batch+=("$n"); [ ${#batch[@]} -lt 16 ] || add_batch; done < "$own/changed"; add_batch
}
git diff --cached --name-only --no-renames --diff-filter=A -z "$base^{tree}" -- %(droppings)s | forget
# A checkout makes CRLF of the LF of some files, or writes an object's name into them. That is undone as git does it.
# Where the commit has a CR as well, git would undo more than a checkout did, so the file's bytes count. A patch in text
# would be applied to other bytes where the agent changed the attributes, or left other bytes than a checkout makes of
# what git took: then the patch is in binary.
converted | sort -zu - "$own/before" > "$own/converted"
if [ -s "$own/converted" ]; then
  attributes ''
  git ls-files -z -- ':(attr:eol=crlf)' ':(attr:ident)' |
    xargs -0 -r git --literal-pathspecs add --renormalize -- || failed
  rules=$(git diff --cached --name-only "$base^{tree}" -- ':(top,glob)**/.gitattributes')
  sums() { (cd "$1" && xargs -0 -r sha1sum -z -- < "$own/before" | sort -z) > "$own/$2"; }
  names() { sed -z 's/^[^ ]* .//' | sort -z; }
  mkdir -p "$own/base" "$own/raw"; sums "$own/base" of_base; sums "$own/raw" of_raw; sums "$here" of_here
  comm -z -23 "$own/of_base" "$own/of_raw" | names > "$own/other_than_raw"
  comm -z -12 "$own/of_base" "$own/of_here" | names > "$own/untouched"
  [ -z "$rules" ] || xargs -0 -r git ls-tree -r -z "$base" -- < "$own/untouched" | git update-index -z --index-info
  changed() { xargs -0 -r git --literal-pathspecs diff --cached --name-only --diff-filter=AM -z "$base^{tree}" --; }
  changed < "$own/converted" > "$own/candidates"
  # The rules for a new file are the old or the new ones, whichever git applies first.
  [ -z "$rules" ] || git diff --cached --name-only --diff-filter=A -z "$base^{tree}" >> "$own/candidates"
  # In a tree that a checkout made, other line ends alone are a change of the agent's, too. Trees that no checkout made
  # have none of its bytes.
  comm -z -12 "$own/other_than_raw" "$own/untouched" > "$own/as_checked_out"
  [ ! -s "$own/as_checked_out" ] || comm -z -23 "$own/other_than_raw" "$own/untouched" >> "$own/candidates"
  sort -zu "$own/candidates" | while IFS= read -r -d '' n; do
    [ -f "$n" ] && [ ! -L "$n" ] || continue
    if [ -f "$own/base/$n" ]; then cp "$own/base/$n" "$own/old"; else git cat-file blob "$base:$n" > "$own/old"; fi
    has_cr=no; ! git cat-file blob "$base:$n" | grep -q $'\r' || has_cr=yes
    if cmp -s "$own/old" "$n" && git cat-file -e "$base:$n"; then
      git --literal-pathspecs ls-tree -z "$base" -- "$n" | git update-index -z --index-info
      continue
    fi
    if [ $has_cr$rules = no ] && git cat-file --filters ":$n" | cmp -s - "$n"; then continue; fi
    ident=$(git check-attr ident -- "$n" | sed 's/.*: //')
    [ $has_cr = yes ] && [ -z "$rules" ] && [ "$ident" != set ] || printf '%%s\0' "$n" >> "$own/exact"
    entry=$(git --literal-pathspecs ls-files -s -z -- "$n" | tr '\0' '\n' | head -c 6)
    git update-index --cacheinfo "$entry,$(git hash-object -w --no-filters -- "$n"),$n"
  done
  attributes '* -text'
fi
"""

# This part puts a patch that the agent handed in into the index.
FROM_FILE = r"""
git apply --cached --whitespace=nowarn %(file)s || failed %(not_applied)d
"""
