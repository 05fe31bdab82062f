/** Whether a field of a form differs from its default, which is what is saved. */
export function isEdited(form: HTMLFormElement): boolean {
  return [...form.elements].some((each) => {
    if (each instanceof HTMLSelectElement)
      return [...each.options].some(({ selected, defaultSelected }) => selected !== defaultSelected);
    if (each instanceof HTMLTextAreaElement) return each.value !== each.defaultValue;
    if (!(each instanceof HTMLInputElement)) return false;
    const has_mark = each.type === 'checkbox' || each.type === 'radio';
    return has_mark ? each.checked !== each.defaultChecked : each.value !== each.defaultValue;
  });
}
