/** A heading's anchor, as GitHub and GitLab make it: lower case, punctuation removed, spaces to hyphens. */
export function anchorOf(title: string): string {
  return title
    .replaceAll(/\[([^\]]*)\]\([^)]*\)/g, '$1')
    .trim()
    .toLowerCase()
    .replaceAll(/[^\p{L}\p{N} _-]/gu, '')
    .replaceAll(' ', '-');
}
