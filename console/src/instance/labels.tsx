/** An instance's labels as tags. */
export function Labels({ labels }: { readonly labels: Readonly<Record<string, string>> }) {
  return (
    <>
      {Object.entries(labels).map(([key, value]) => (
        <span key={key} class="tag">
          {key}={value}
        </span>
      ))}
    </>
  );
}
